"""Statements of onnx/parity.json that their own numbers contradict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zoo.errors import ModelFolderError
from zoo.hub.model_page import graph_table, graphs_of
from zoo.models.results import contradictions, read_parity


def entry(**changes: Any) -> dict[str, Any]:
    row = {"fp32": 0.7, "int8": 0.698, "difference": -0.002, "interval": [-0.004, 0.001], "within_target": False}
    cost = {"dataset": "glyphs", "split": "test", "queries": 9, "recall_at_1": {**row, **changes}}
    return {"min_cosine": 0.99, "holds": True, "cost": cost}


def test_what_is_consistent() -> None:
    assert contradictions(entry(), "int8") == []
    assert contradictions(entry(interval=[-0.002, 0.001], within_target=True), "int8") == []
    over_queries = {"interval": [-0.002, -0.0019], "within_target": True}
    assert contradictions(entry(over_queries=over_queries), "int8") == []
    assert contradictions({"min_cosine": 0.99999, "holds": True, "cost": None}, "fp32") == []
    assert contradictions({"min_cosine": 0.9, "holds": False, "cost": {"not_measured": "no data"}}, "int8") == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"within_target": True}, "within_target is True, and the interval begins at -0.0040"),
        ({"interval": [-0.001, 0.001]}, "outside its interval"),
        ({"difference": -0.001}, "-0.0010 is not the difference of 0.6980 and 0.7000"),
        ({"fp32": float("nan")}, "is not the difference"),
        ({"over_queries": {"interval": [-0.001, 0.001], "within_target": True}}, "over queries: -0.0020 lies outside"),
        ({"over_queries": {"interval": [-0.003, 0.0], "within_target": True}}, "over queries: within_target is True"),
    ],
)
def test_a_cost_that_contradicts_itself(changes: dict[str, Any], says: str) -> None:
    assert any(says in why for why in contradictions(entry(**changes), "int8"))


@pytest.mark.parametrize(
    ("precision", "cosine"), [("fp32", 0.9999), ("fp16", 0.99), ("int8", 0.94), ("fp32", float("nan"))]
)
def test_a_cosine_below_the_floor_does_not_hold(precision: str, cosine: float) -> None:
    (why,) = contradictions({"min_cosine": cosine, "holds": True}, precision)
    assert "holds, the floor is" in why


def test_the_file_cut_anywhere(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_int8.onnx").touch()
    data = json.dumps({"int8": entry()}).encode()
    for end in range(len(data)):
        (tmp_path / "onnx" / "parity.json").write_bytes(data[:end])
        for read in (read_parity, graphs_of):
            with pytest.raises(ModelFolderError, match=r"parity\.json is not what zoo export writes"):
                read(tmp_path)
    (tmp_path / "onnx" / "parity.json").write_bytes(data)
    (graph,) = graphs_of(tmp_path)
    assert graph.holds


@pytest.mark.parametrize("value", ["[]", '{"int8": 1}', '{"int8": {"cost": 1}}', '{"int8": {"min_cosine": []}}'])
def test_a_file_that_holds_something_else(tmp_path: Path, value: str) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_int8.onnx").touch()
    (tmp_path / "onnx" / "parity.json").write_text(value)
    with pytest.raises(ModelFolderError, match=r"parity\.json is not what zoo export writes"):
        graphs_of(tmp_path)


def test_a_loss_that_is_not_shown_to_be_small_is_named(tmp_path: Path) -> None:
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
                "onnx/model_int8.onnx is not shown to cost less than its target: R@1 -0.20 points, 95 % -0.40 to +0.10"
            )
