"""The page of what precisions cost says what model folders say, and judges by the interval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exports import cost_page
from tests.models import CARD
from zoo.errors import UsageError

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
    cost_page.main([str(folder), "--docs", str(tmp_path)])
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
    cost_page.main(["--docs", str(tmp_path)])  # from what is kept
    assert (tmp_path / "precision-cost.md").read_text() == text


def test_a_model_whose_costs_were_not_measured(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", {"not_measured": "there is a single class to test on"})
    with pytest.raises(UsageError, match="holds no cost of a precision"):
        cost_page.row(folder)
    with pytest.raises(SystemExit, match="zoo export"):
        cost_page.main([str(folder), "--docs", str(tmp_path)])


def test_the_documents_page_is_of_its_figures() -> None:
    text = (cost_page.DOCS / "precision-cost.md").read_text(encoding="utf-8")
    known = json.loads((cost_page.DOCS / "precision-cost.json").read_text(encoding="utf-8"))
    assert cost_page.page(text, known) == text
