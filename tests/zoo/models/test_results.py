"""Entries of onnx/parity.json: contradictions, damage, and the page's table of graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.raising import raises
from zoo.data.dataset import DataIdentity
from zoo.errors import ModelFolderError
from zoo.hub.model_page import graph_table, graphs_of
from zoo.models.results import contradictions, data_title, read_parity


def entry(**changes: Any) -> dict[str, Any]:
    row = {"fp32": 0.7, "int8": 0.698, "difference": -0.002, "interval": [-0.004, 0.001], "within_target": False}
    cost = {"dataset": "glyphs", "split": "test", "queries": 9, "recall_at_1": {**row, **changes}}
    return {"min_cosine": 0.99, "holds": True, "cost": cost}


def test_consistent_entries() -> None:
    assert contradictions(entry(), "int8") == []
    assert contradictions(entry(interval=[-0.002, 0.001], within_target=True), "int8") == []
    over_queries = {"interval": [-0.002, -0.0019], "within_target": True}
    assert contradictions(entry(over_queries=over_queries), "int8") == []
    assert contradictions({"min_cosine": 0.99999, "holds": True, "cost": None}, "fp32") == []
    assert contradictions({"min_cosine": 0.9, "holds": False, "cost": {"not_measured": "no data"}}, "int8") == []


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"within_target": True}, ["recall_at_1: within_target is True", "-0.0040"]),
        ({"interval": [-0.001, 0.001]}, ["recall_at_1: -0.0020", "-0.0010 to +0.0010"]),
        ({"difference": -0.001}, ["recall_at_1: -0.0010", "0.6980 and 0.7000"]),
        ({"fp32": float("nan")}, ["recall_at_1: -0.0020", "nan"]),
        ({"over_queries": {"interval": [-0.001, 0.001], "within_target": True}}, ["over queries: -0.0020"]),
        ({"over_queries": {"interval": [-0.003, 0.0], "within_target": True}}, ["over queries: within_target is True"]),
    ],
)
def test_a_cost_that_contradicts_itself(changes: dict[str, Any], values: list[str]) -> None:
    problems = contradictions(entry(**changes), "int8")
    assert any(all(value in problem for value in values) for problem in problems)


@pytest.mark.parametrize(
    ("precision", "cosine"), [("fp32", 0.9999), ("fp16", 0.99), ("int8", 0.94), ("fp32", float("nan"))]
)
def test_a_cosine_below_the_floor_does_not_hold(precision: str, cosine: float) -> None:
    (problem,) = contradictions({"min_cosine": cosine, "holds": True}, precision)
    assert f"{cosine:.6f}" in problem


def test_the_file_cut_anywhere(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_int8.onnx").touch()
    data = json.dumps({"int8": entry()}).encode()
    for end in range(len(data)):
        (tmp_path / "onnx" / "parity.json").write_bytes(data[:end])
        for read in (read_parity, graphs_of):
            with raises(ModelFolderError, "damaged-file"):
                read(tmp_path)
    (tmp_path / "onnx" / "parity.json").write_bytes(data)
    (graph,) = graphs_of(tmp_path)
    assert graph.holds


@pytest.mark.parametrize("value", ["[]", '{"int8": 1}', '{"int8": {"cost": 1}}', '{"int8": {"min_cosine": []}}'])
def test_a_file_of_another_shape(tmp_path: Path, value: str) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_int8.onnx").touch()
    (tmp_path / "onnx" / "parity.json").write_text(value)
    with raises(ModelFolderError, "damaged-file"):
        graphs_of(tmp_path)


def test_a_loss_that_may_exceed_the_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_int8.onnx").touch()
    for entries, within in (({"int8": entry()}, False), ({"int8": entry(interval=[0, 0], within_target=True)}, True)):
        (tmp_path / "onnx" / "parity.json").write_text(json.dumps(entries))
        (graph,) = graphs_of(tmp_path)
        assert ("not shown to be within the target" in graph_table([graph]).markdown()) is not within
        if within:
            assert graph.remark is None
        else:
            assert graph.remark == (
                "onnx/model_int8.onnx is not shown to cost less than its target: R@1 -0.0020, 95 % -0.0040 to +0.0010"
            )


def test_a_hash_of_labels_does_not_look_like_one_of_images() -> None:
    """Rows of two data sets with equal labels have one hash, so it must not name images."""
    data: dict[str, Any] = {"name": "l.txt", "sha256": "ab" * 32, "images": 4, "classes": 2}
    images = str(DataIdentity(**data))
    assert data_title({"dataset": "folder", "data": data}) == images
    assert images not in data_title({"dataset": None, "data": data})
    assert "labels abababab" in data_title({"dataset": None, "data": data})
