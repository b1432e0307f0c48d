"""The checkpoints that come with the package are what their cards and results say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import zoo
from zoo.cards import read_card
from zoo.datasets.dataset import Dataset
from zoo.paths import SHIPPED
from zoo.registry import find, recipes
from zoo.verify import verify

FOLDERS = sorted(path.parent for path in SHIPPED.glob("*/card.json"))


def test_there_are_some_and_they_are_small() -> None:
    methods = ("margin", "r-margin", "diva", "mic", "shared", "group")
    assert {folder.name for folder in FOLDERS} == {f"{method}-conv4-glyphs" for method in methods}
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) <= 8_000_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shipped_model_is_found_by_its_name_and_passes_every_check(folder: Path) -> None:
    assert find(folder.name) == folder
    assert zoo.info(folder.name).status == "shipped"
    assert folder.name in recipes(), "a shipped model is trained by the project's own recipe"
    checks = {check.name: check.ok for check in verify(folder)}
    assert all(checks.values()), checks
    heads = {"sha256 heads.safetensors"} if read_card(folder).heads else set()
    wanted = {"sha256 model.safetensors", "sha256 onnx/model.onnx", "golden torch fp32", "golden onnx fp32"}
    assert wanted | heads <= set(checks)


@pytest.fixture(scope="module")
def drawn() -> Dataset:
    """The pictures that all were measured on, drawn once: that takes far longer than to embed them."""
    lazy = zoo.datasets.load("glyphs", "test")
    return dataclasses.replace(lazy, images=list(lazy.images))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_scores_are_measured_again(folder: Path, drawn: Dataset) -> None:
    (result,) = [r for r in zoo.info(folder.name).results if r["runtime"] == "onnx"]
    assert (result["dataset"], result["split"]) == (drawn.name, drawn.split)
    again = zoo.evaluate(zoo.load(folder.name, runtime="onnx"), drawn)
    assert again.queries == result["queries"]
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        assert low <= value <= high
        # Rounding on another processor may turn a query or two; the interval is far wider than that.
        assert again.metrics[name] == pytest.approx(value, abs=0.002), name
