"""Shipped models agree with their cards, recipes, results and documentation; `photos`: test_photos.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import onnx
import pytest

import zoo
from training.overrides import changed_settings
from training.recipe import Recipe
from training.recipes import RECIPES
from zoo.data.dataset import Dataset
from zoo.models import recipes
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.verify import verify
from zoo.paths import SHIPPED

FOLDERS = sorted(path.parent for path in SHIPPED.glob("*-glyphs/card.json"))
OF_PHOTOGRAPHS = sorted(path.parent for path in SHIPPED.glob("*-lite0-*/card.json"))


def test_the_shipped_models_are_small() -> None:
    methods = ("margin", "r-margin", "group")
    assert {folder.name for folder in FOLDERS} == {f"{method}-conv4-glyphs" for method in methods}
    assert sum(file.stat().st_size for folder in FOLDERS for file in folder.rglob("*") if file.is_file()) <= 4_000_000


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shipped_model_is_found_by_its_name_and_passes_every_check(folder: Path) -> None:
    assert find_model(folder.name) == folder
    assert zoo.info(folder.name).status == "shipped"
    assert folder.name in recipes(), "a shipped model is trained by the project's own recipe"
    checks = {check.name: check.ok for check in verify(folder)}
    assert all(checks.values()), checks
    heads = {"sha256 heads.safetensors"} if read_card(folder).heads else set()
    wanted = {"sha256 model.safetensors", "sha256 onnx/model.onnx", "golden torch fp32", "golden onnx fp32"}
    assert wanted | heads <= set(checks)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_graphs_metadata_name_model_and_precision(folder: Path) -> None:
    metadata = {entry.key: entry.value for entry in onnx.load(folder / GRAPH_FILES["fp32"]).metadata_props}
    assert metadata == {"dml-zoo.fingerprint": read_card(folder).fingerprint, "dml-zoo.precision": "fp32"}


EARLIER = {"r-margin-conv4-glyphs": {"objective.miner_args.published": False}}
"""Settings of models that were trained before their recipe changed: rho made (a, p, p)."""


@pytest.mark.parametrize("folder", [*FOLDERS, *OF_PHOTOGRAPHS], ids=lambda folder: folder.name)
def test_the_recipe_in_the_folder_is_the_current_one(folder: Path) -> None:
    written = json.loads((folder / "recipe.json").read_text())
    changed = changed_settings(Recipe.from_json(written["recipe"]), RECIPES[folder.name]())
    assert changed == written["settings"] == EARLIER.get(folder.name, {})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_card_and_the_documentation_state_the_scores(folder: Path) -> None:
    card = read_card(folder)
    (result,) = [r for r in zoo.info(folder.name).results if r["runtime"] == "torch"]
    low, high = result["intervals"]["recall_at_1"]
    recall, precision = (f"{result['metrics'][metric]:.3f}"[1:] for metric in ("recall_at_1", "map_at_r"))
    assert f"R@1 {recall} (95 % interval {low:.3f} to {high:.3f}), MAP@R {precision}".replace("0.", ".") in (
        card.description
    )
    assert len(card.description) > 150
    page = (SHIPPED.parent.parent / "docs" / "lab" / "shipped-models.md").read_text(encoding="utf-8")
    assert f"| `{card.name}` | {card.dim} | {recall} | {precision} |" in page


def test_the_models_of_photographs_are_shipped() -> None:
    assert {folder.name for folder in OF_PHOTOGRAPHS} == {
        *("margin-lite0-cub2010", "margin-lite0-cub2010-lda", "diva-lite0-cub2010", "shared-lite0-cub2010"),
        *("r-margin-lite0-cub2010", "group-lite0-cub2010", "mic-lite0-cub2010", "pa-lite0-cars-half-lda"),
    }


@pytest.mark.parametrize("folder", [*FOLDERS, *OF_PHOTOGRAPHS], ids=lambda folder: folder.name)
def test_a_model_with_the_name_of_a_method_holds_the_heads_that_the_method_trained(folder: Path) -> None:
    """The fault: a model was carded "DiVA (all four tasks)" and held one head of discriminant directions."""
    recipe = Recipe.from_json(json.loads((folder / "recipe.json").read_text())["recipe"])
    card, projected = read_card(folder), folder.name.endswith("-lda")
    assert zoo.info(folder.name).head == ("LDA" if projected else "method" if recipe.heads else "none")
    assert ("Discriminant directions" in card.description) == projected
    if not projected:
        assert card.heads == recipe.heads


@pytest.mark.slow
@pytest.mark.parametrize("folder", OF_PHOTOGRAPHS, ids=lambda folder: folder.name)
def test_a_model_of_photographs_is_small_and_passes_every_check(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 15_000_000
    assert zoo.info(folder.name).status == "shipped"
    checks = {check.name: check.ok for check in verify(folder)}
    assert all(checks.values()), checks
    assert {"sha256 model.safetensors", "sha256 heads.safetensors", "golden torch fp32"} <= set(checks)


@pytest.mark.parametrize("folder", OF_PHOTOGRAPHS, ids=lambda folder: folder.name)
def test_the_card_and_the_documentation_of_photographs_state_data_licence_and_scores(folder: Path) -> None:
    card = read_card(folder)
    (result,) = [r for r in zoo.info(folder.name).results if r["runtime"] == "torch"]
    recall, precision = (f"{result['metrics'][metric]:.3f}"[1:] for metric in ("recall_at_1", "map_at_r"))
    bounds = [[f"{bound:.3f}"[1:] for bound in result["intervals"][metric]] for metric in ("recall_at_1", "map_at_r")]
    (low, high), map_bounds = bounds
    assert f"R@1 {recall} (95 % interval {low} to {high}), MAP@R {precision}" in card.description
    assert "research and evaluation only" in card.licence
    assert {"cub2010": "CUB-200 (2010)", "cars-half": "half of Cars196"}[card.dataset] in card.description
    page = (SHIPPED.parent.parent / "docs" / "lab" / "shipped-models.md").read_text(encoding="utf-8")
    cells = f"| {recall} ({low} to {high}) | {precision} ({' to '.join(map_bounds)}) |"
    assert f"| `{card.name}` | {zoo.info(card.name).head} | {card.dim} {cells}" in page


@pytest.fixture(scope="module")
def glyphs() -> Dataset:
    """The images of all measurements, drawn once, which takes far longer than embedding them."""
    lazy = zoo.data.load_dataset("glyphs", "test")
    return dataclasses.replace(lazy, images=list(lazy.images))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_recorded_scores_are_reproduced(folder: Path, glyphs: Dataset) -> None:
    (result,) = [r for r in zoo.info(folder.name).results if r["runtime"] == "onnx"]
    assert (result["dataset"], result["split"]) == (glyphs.name, glyphs.split)
    again = zoo.evaluate(zoo.load(folder.name, runtime="onnx"), glyphs)
    assert again.queries == result["queries"]
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        assert low <= value <= high
        # Rounding on another processor may turn a query or two; the interval is far wider than that.
        assert again.metrics[name] == pytest.approx(value, abs=0.002), name
