"""The page of what precisions cost: its rows are those of model folders, judged by their intervals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.models import CARD
from tests.raising import raises
from tools import precision_cost
from tools.precision_cost import mean_of, pooled
from zoo.errors import UsageError
from zoo.evaluation.retrieval import PerQuery
from zoo.models.load import find_model

PAGE = "before\n<!-- costs -->\nold\n<!-- end -->\n<!-- models --><!-- end --> <!-- origin --> <!-- end -->\nafter\n"


def change(difference: float, low: float, high: float) -> dict[str, object]:
    return {"fp32": 0.3, "int8": 0.3 + difference, "difference": difference, "interval": [low, high]}


def write_model(folder: Path, cost: dict[str, object]) -> Path:
    (folder / "onnx").mkdir(parents=True)
    CARD.write(folder)
    recipe = {"schedule": {"epochs": 3, "steps": 500}, "seed": 7}
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe}))
    details = {"quantised": "layers alone", "calibrated_on": "cifar100, train split"}
    entry = {"cost": cost, "date": "2030-01-02", "versions": {"onnx": "9.9"}, "details": details, "min_cosine": 0.98765}
    fp32 = {"cost": None, "date": "2030-01-01", "versions": {}, "details": {}}
    (folder / "onnx/parity.json").write_text(json.dumps({"fp32": fp32, "int8": entry}))
    (folder / "onnx/model.onnx").write_bytes(bytes(2**20))
    (folder / "onnx/model_int8.onnx").write_bytes(bytes(2**19))
    return folder


def test_the_page_of_a_model(tmp_path: Path) -> None:
    recall = {**change(-0.0012, -0.0031, 0.0007), "over_queries": {"interval": [-0.0019, -0.0005]}}
    older = change(0.00004, 0.00001, 0.00007)  # written before there was an interval over queries
    cost = {"recall_at_1": recall, "map_at_r": older}
    folder = write_model(tmp_path / "model", cost)
    (tmp_path / "precision-cost.md").write_text(PAGE)
    precision_cost.main([str(folder), "--docs", str(tmp_path)])
    text = (tmp_path / "precision-cost.md").read_text()
    size = f"{CARD.architecture}, {CARD.preprocessing.crop} px"
    recall = "0.300 | -0.12 | -0.31 to +0.07, undecided | -0.19 to -0.05, met"
    map_at_r = "0.3000 | +0.004 | +0.001 to +0.007, met | -"
    assert f"| {CARD.name} | {size} | int8 | 0.50 | 0.98765 | {recall} | {map_at_r} |" in text
    assert "1,500 steps, seed 7; 1.00 MiB in fp32" in text
    assert "in fp32; int8: layers alone, calibrated on cifar100, train split." in text
    assert "Measured 2030-01-02 to 2030-01-02 on " in text
    assert "; onnx 9.9." in text
    assert text.startswith("before\n<!-- costs -->\n| model |")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    precision_cost.main(["--docs", str(tmp_path)])  # from what is kept
    assert (tmp_path / "precision-cost.md").read_text() == text


def test_a_model_whose_costs_were_not_measured(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {"not_measured": "there is a single class to test on"})
    with raises(UsageError, "no-precision-cost"):
        precision_cost.row(folder)
    with pytest.raises(SystemExit) as ended:
        precision_cost.main([str(folder), "--docs", str(tmp_path)])
    assert str(folder) in str(ended.value)


def test_the_documents_page_is_of_its_figures() -> None:
    text = (precision_cost.DOCS / "precision-cost.md").read_text(encoding="utf-8")
    known = json.loads((precision_cost.DOCS / "precision-cost.json").read_text(encoding="utf-8"))
    assert precision_cost.page(text, known) == text


def measured(*recalls: float) -> PerQuery:
    values = {name: np.array(recalls) for name in ("recall_at_1", "map_at_r")}
    return PerQuery(values, np.arange(len(recalls)), np.array([0, 0, 1, 1]), 0)


def test_each_query_has_the_mean_of_the_models() -> None:
    both = mean_of([measured(1, 0, 0, 1), measured(1, 1, 0, 0)])
    np.testing.assert_array_equal(both.values["recall_at_1"], [1, 0.5, 0, 0.5])
    assert both.means()["map_at_r"] == 0.5


def test_the_interval_over_seeds_is_students() -> None:
    before = [measured(1, 1, 1, 1)] * 3
    after = [measured(1, 1, 1, 0), measured(1, 1, 0, 0), measured(1, 1, 1, 1)]
    found = precision_cost._over_seeds(before, after)
    assert found["changes"] == [-0.25, -0.5, 0.0]
    half = 4.302653 * 0.25 / 3**0.5  # the 97.5 % point of Student's t with two degrees of freedom
    assert found["interval"] == pytest.approx([-0.25 - half, -0.25 + half], abs=1e-4)


def model(folder: Path, seed: int, lr: float = 1e-3) -> Path:
    shutil.copytree(find_model("margin-conv4-glyphs"), folder)
    recipe = {"name": f"margin-{seed}", "seed": seed, "optimizer": {"lr": lr}}
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe}))
    return folder


def test_only_models_of_one_recipe_and_different_seeds_are_pooled(tmp_path: Path) -> None:
    one, again = model(tmp_path / "a", 1), model(tmp_path / "b", 1)
    other = model(tmp_path / "c", 2, lr=1e-4)
    for folders in ([one], [one, again], [one, other]):
        with raises(UsageError, "not-one-recipe"):
            pooled(folders)
