"""Precision costs measured again and compared with onnx/parity.json."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from tests.serving import toys
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.evaluation.remeasure import measure_retrieval, precision_cost, remeasure_costs
from zoo.files import sha256_of, write_json
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import Check, read_parity


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A toy with a coarser graph beside its own, and what that costs on the pictures."""
    folder = toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")
    write_coarse(folder)
    dataset = load_dataset("folder", "test", pictures)
    fp32, int8 = (measure_retrieval(dataset, load(folder, "onnx", precision)) for precision in ("fp32", "int8"))
    cost = precision_cost(dataset, fp32, int8, "int8")
    assert cost["recall_at_1"]["difference"] < 0
    write_json(folder / "onnx" / "parity.json", {"int8": {"min_cosine": 0.5, "holds": False, "cost": cost}})
    return folder


def write_coarse(folder: Path) -> None:
    """The toy's projection on to a single number."""
    model = onnx.load(folder / GRAPH_FILES["fp32"])
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == "projection"]
    values = numpy_helper.to_array(weight).copy()
    values[:, 1:] = 0
    weight.CopyFrom(numpy_helper.from_array(values, "projection"))
    onnx.save(model, folder / GRAPH_FILES["int8"])
    card = read_card(folder)
    files = {**card.files, GRAPH_FILES["int8"]: sha256_of(folder / GRAPH_FILES["int8"])}
    dataclasses.replace(card, files=files).write(folder)


@pytest.fixture
def copy(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "toy-pool"))


def check_of(folder: Path, data: Path | None) -> Check:
    (check,) = remeasure_costs(folder, data)
    return check


def change(folder: Path, metric: str | None, **values: Any) -> None:
    entries = read_parity(folder)
    cost = entries["int8"]["cost"]
    (cost if metric is None else cost[metric]).update(values)
    (folder / "onnx" / "parity.json").write_text(json.dumps(entries))


def test_costs_that_are_true_pass(copy: Path, pictures: Path) -> None:
    assert read_parity(copy)["int8"]["cost"]["protocol"] == "leave-one-out, cosine, exact"
    check = check_of(copy, pictures)
    assert check.name == "cost onnx int8"
    assert check.ok is True, check.detail
    assert "recall_at_1 -0." in check.detail


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["recall_at_1", "map_at_r"])
@pytest.mark.parametrize("field", ["fp32", "int8", "difference"])
def test_a_wrong_number_fails(copy: Path, pictures: Path, metric: str, field: str) -> None:
    true = read_parity(copy)["int8"]["cost"][metric][field]
    change(copy, metric, **{field: true + 0.0019})
    assert check_of(copy, pictures).ok is True
    change(copy, metric, **{field: true + 0.0021})
    check = check_of(copy, pictures)
    assert check.ok is False
    assert metric in check.detail


def test_an_interval_that_is_too_narrow_fails(copy: Path, pictures: Path) -> None:
    change(copy, "recall_at_1", interval=[-0.001, 0.001], within_target=True)
    check = check_of(copy, pictures)
    assert check.ok is False
    assert "recall_at_1, interval's lower end" in check.detail


def test_an_interval_over_queries_is_compared(copy: Path, pictures: Path) -> None:
    change(copy, "map_at_r", over_queries={"interval": [-0.001, 0.001], "within_target": True})
    check = check_of(copy, pictures)
    assert check.ok is False
    assert "map_at_r, interval's lower end over queries" in check.detail


def test_other_images_and_missing_data_leave_the_check_open(copy: Path, pictures: Path) -> None:
    data = read_parity(copy)["int8"]["cost"]["data"]
    assert check_of(copy, None).ok is None
    change(copy, None, queries=5)
    assert check_of(copy, pictures).ok is False  # of the same images, and not as many
    change(copy, None, data=None)
    check = check_of(copy, pictures)
    assert check.ok is None
    assert "other images" in check.detail
    write_json(copy / "onnx" / "parity.json", {"int8": {"cost": {"not_measured": "no data"}}})
    assert check_of(copy, pictures) == Check("cost onnx int8", None, "was not measured when it was exported: no data")
    write_json(copy / "onnx" / "parity.json", {"int8": {"cost": None}, "fp16": {"cost": {}}})
    assert list(remeasure_costs(copy, pictures)) == []
    write_json(copy / "onnx" / "parity.json", {"int8": {"cost": {"dataset": "folder", "split": "all", "data": data}}})
    check = check_of(copy, pictures)
    assert check.ok is False
    assert "onnx/parity.json" in check.detail


def test_held_out_classes_are_measured_without_unreadable_images(
    measured: Path, pictures: Path, tmp_path: Path
) -> None:
    """The folder of the model is split only by its recipe.json, as `zoo export` measures it."""
    root = Path(shutil.copytree(pictures, tmp_path / "products"))
    copy = Path(shutil.copytree(measured, tmp_path / "mine"))
    card = json.loads((copy / "card.json").read_text())
    (copy / "card.json").write_text(json.dumps({**card, "dataset": "folder"}))
    train, test = toys.CLASSES[1:3], sorted((toys.CLASSES[0], toys.CLASSES[3]))
    record = {"train_classes": train, "test_classes": test, "images_sha256": "other"}
    (copy / "recipe.json").write_text(json.dumps({"split": record}))
    for name in test:
        shutil.copytree(root / name, tmp_path / "held out" / name)
    parts = load_dataset("folder", "all", tmp_path / "held out")
    fp32, int8 = (measure_retrieval(parts, load(copy, "onnx", precision)) for precision in ("fp32", "int8"))
    cost = {**precision_cost(parts, fp32, int8, "int8"), "split": "test"}
    write_json(copy / "onnx" / "parity.json", {"int8": {"min_cosine": 0.5, "holds": False, "cost": cost}})
    (root / test[0] / "broken.png").write_bytes(b"no image")
    check = check_of(copy, root)
    assert check.ok is True, check.detail
    change(copy, "map_at_r", difference=0.9)
    assert check_of(copy, root).ok is False
    shutil.copy(root / test[0] / "0.png", root / test[0] / "new.png")
    check = check_of(copy, root)
    assert (check.ok, check.detail.startswith("other images: these are products (")) == (None, True)
    shutil.rmtree(root / test[0])
    check = check_of(copy, root)
    assert check.ok is None
    assert "the folder lacks 1 of the 2 classes" in check.detail
    assert check.detail.endswith("the costs are of its test split")


def test_the_command_measures_them(copy: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(copy, "map_at_r", difference=0.0)
    assert main(["verify", str(copy), "--data", str(pictures)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "cost onnx int8" in line]
    assert line.startswith("FAILED")
    assert "map_at_r, difference" in line
