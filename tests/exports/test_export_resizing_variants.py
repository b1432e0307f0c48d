"""Graphs that resize, next to the graphs that they were made from: pushed, verified, removed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import zoo
from exports.export import Exporter, write_metadata
from exports.resizing import write_resizing_graph
from tests.models import CARD
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import ModelFolderError
from zoo.files import sha256_of
from zoo.hub.model_page import graphs_of
from zoo.models.card import read_card
from zoo.models.onnx_runtime import GRAPH_FILES, RESIZING_FILES
from zoo.models.results import Check
from zoo.models.verify import verify

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def resizing(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported toy with graphs that resize."""
    folder = Path(shutil.copytree(exported, tmp_path_factory.mktemp("resizing") / CARD.name))
    exporter = Exporter(folder, cost=False)
    for precision in GRAPH_FILES:
        exporter.export_resizing(precision)
    return folder


@pytest.fixture
def copy(resizing: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(resizing, tmp_path / CARD.name))


def change_parity(folder: Path, variant: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "onnx" / "parity.json"
    entries = json.loads(path.read_text())
    change(entries[variant])
    path.write_text(json.dumps(entries))


def checks(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in verify(folder)}


def vouch(folder: Path, file: str) -> None:
    card = read_card(folder)
    dataclasses.replace(card, files={**card.files, file: sha256_of(folder / file)}).write(folder)


def write_inexact(folder: Path, precision: str) -> None:
    """Replace a precision's graph by the fp32 graph with weights that differ by some per cent."""
    model, draw = onnx.load(folder / GRAPH_FILES["fp32"]), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if (values := numpy_helper.to_array(tensor)).ndim == 4:
            noise = 0.1 * values.std() * draw.normal(size=values.shape)
            tensor.CopyFrom(numpy_helper.from_array((values + noise).astype(np.float32), tensor.name))
    onnx.save(model, folder / GRAPH_FILES[precision])
    write_metadata(folder / GRAPH_FILES[precision], read_card(folder), precision)
    vouch(folder, GRAPH_FILES[precision])


@pytest.mark.parametrize("entries", [{"holds": False, "forced": True}, {"min_cosine_to_pillow": 0.5}])
def test_a_graph_below_its_floor_is_sent_only_by_force(copy: Path, entries: dict[str, Any]) -> None:
    assert "below the floor" not in zoo.push(copy, "org/toy", dry_run=True).readme
    change_parity(copy, "fp32-resize", lambda entry: entry.update(entries))
    with raises(ModelFolderError, "below-floor") as caught:
        zoo.push(copy, "org/toy", dry_run=True)
    assert "onnx/model_resize.onnx" in str(caught.value)
    page = zoo.push(copy, "org/toy", dry_run=True, force=True).readme
    (line,) = [line for line in page.splitlines() if "`onnx/model_resize.onnx`" in line]
    assert "below the floor of `zoo export`" in line


def test_the_page_lists_them_separately(copy: Path) -> None:
    told = {graph.file: graph for graph in graphs_of(copy)}
    assert list(told) == [*GRAPH_FILES.values(), *RESIZING_FILES.values()]
    page = zoo.push(copy, "org/toy", dry_run=True).readme
    cosine = told[RESIZING_FILES["int8"]].cosine
    assert f"| {cosine:.6f} to the same behind Pillow |" in page
    assert "takes images of any height and width" in page


def test_a_new_export_removes_the_graph_that_resizes(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(copy), "--precision", "fp16", "--no-cost"]) == 0
    assert "onnx/model_fp16_resize.onnx" in capsys.readouterr().out
    assert not (copy / RESIZING_FILES["fp16"]).exists()
    assert RESIZING_FILES["fp16"] not in read_card(copy).files
    parity = json.loads((copy / "onnx" / "parity.json").read_text())
    assert "fp16-resize" not in parity
    assert {"fp16", "fp32-resize", "int8-resize"} <= parity.keys()
    assert all((copy / RESIZING_FILES[precision]).is_file() for precision in ("fp32", "int8"))
    assert main(["export", str(copy), "--precision", "fp16", "--no-cost", "--resize", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == []
    assert (copy / RESIZING_FILES["fp16"]).is_file()
    assert {check.ok for check in verify(copy)} == {True}


def test_golden_images_are_checked_unresized(copy: Path) -> None:
    found = checks(copy)
    assert {found[f"golden onnx {precision} resize"].ok for precision in GRAPH_FILES} == {True}


def test_other_resizing_is_found(copy: Path) -> None:
    how = dataclasses.replace(CARD.preprocessing, resize=5 * CARD.preprocessing.resize)
    write_resizing_graph(copy / GRAPH_FILES["fp32"], how, copy / RESIZING_FILES["fp32"])
    write_metadata(copy / RESIZING_FILES["fp32"], read_card(copy), "fp32")
    vouch(copy, RESIZING_FILES["fp32"])
    assert [name for name, check in checks(copy).items() if check.ok is False] == ["golden onnx fp32 resize"]


def test_another_model_or_another_input_is_found(copy: Path) -> None:
    shutil.copy(copy / GRAPH_FILES["fp32"], copy / RESIZING_FILES["fp32"])
    vouch(copy, RESIZING_FILES["fp32"])
    assert "'images'" in checks(copy)["golden onnx fp32 resize"].detail
    write_metadata(copy / RESIZING_FILES["fp16"], dataclasses.replace(read_card(copy), architecture="other"), "fp16")
    vouch(copy, RESIZING_FILES["fp16"])
    assert "of another model" in checks(copy)["golden onnx fp16 resize"].detail
    write_metadata(copy / RESIZING_FILES["fp16"], read_card(copy), "int8")
    vouch(copy, RESIZING_FILES["fp16"])
    assert "is an ONNX graph in int8, its name says fp16" in checks(copy)["golden onnx fp16 resize"].detail


def test_the_parity_record_is_compared_with_the_golden_images(copy: Path) -> None:
    found = checks(copy)
    assert {found[f"parity onnx {precision}"].ok for precision in GRAPH_FILES} == {True}
    write_inexact(copy, "int8")
    found = checks(copy)
    cosine = found["golden onnx int8"].cosine
    assert cosine is not None
    assert 0.95 < cosine < 0.999
    assert found["golden onnx int8"].ok is True
    assert found["parity onnx int8"].ok is False
    assert f"{cosine:.6f}" in found["parity onnx int8"].detail
    change_parity(copy, "int8", lambda entry: entry.update(min_cosine=0.96))
    assert checks(copy)["parity onnx int8"].ok is True


@pytest.mark.parametrize(("entry", "says"), [({"min_cosine": "high"}, "onnx/parity.json"), ({}, "min_cosine")])
def test_a_damaged_parity_record_fails_the_check(copy: Path, entry: dict[str, Any], says: str) -> None:
    def change(old: dict[str, Any]) -> None:
        old.clear()
        old.update(entry)

    change_parity(copy, "fp16", change)
    check = checks(copy)["parity onnx fp16"]
    assert check.ok is False
    assert says in check.detail
    (copy / "onnx" / "parity.json").write_text('{"fp16": ')
    assert checks(copy)["onnx/parity.json"].ok is False


def test_a_push_names_a_loss_that_may_be_large(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"fp32": 0.7, "int8": 0.697, "difference": -0.003, "interval": [-0.006, 0.0], "within_target": False}
    change_parity(copy, "int8", lambda entry: entry.update(cost={"dataset": "folder", "recall_at_1": row}))
    done = zoo.push(copy, "org/toy", dry_run=True)
    remark = next(remark for remark in done.remarks if "model_int8.onnx" in remark)
    assert remark == (
        "onnx/model_int8.onnx is not shown to cost less than its target: R@1 -0.0030, 95 % -0.0060 to +0.0000"
    )
    assert "R@1 -0.0030 (-0.0060 to +0.0000), not shown to be within the target" in done.readme
    assert main(["push", str(copy), "org/toy", "--dry-run"]) == 0
    assert f"note: {remark}" in capsys.readouterr().out
