"""Recipes: the facts that `zoo info` shows, and the published scores that name them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.children import run_python
from training.recipe import EnsembleRecipe
from training.recipes import RECIPES, embedding_dim, summary
from zoo.models.published import published_tables

SCORES = [(table, score) for table in published_tables() for score in table.scores if score.recipe]

RECIPE = RECIPES["margin-conv4-glyphs"]()
assert not isinstance(RECIPE, EnsembleRecipe)


def test_the_parameters_of_conv4_by_hand() -> None:
    # Four 3 x 3 convolutions without bias, each with a scale and a shift of batch norm a channel; a head of 64.
    trunk = sum(9 * a * b + 2 * b for a, b in pairwise([3, 32, 64, 80, 96]))
    assert summary(RECIPE)["parameters"] == trunk + 97 * 64


def test_the_text_follows_the_recipe() -> None:
    changed = replace(
        RECIPE,
        heads=(),
        backbone=replace(RECIPE.backbone, pretrained="org/name", freeze_norm="statistics"),
        schedule=replace(RECIPE.schedule, name="multi-step", epochs=9, steps=0, milestones=(3, 6), gamma=0.5),
    )
    facts = summary(changed)
    assert facts["heads"] == "none: pooled features"
    assert facts["architecture"] == "conv4 from org/name, batch norm's statistics frozen"
    assert facts["schedule"].startswith("9 epochs, adamw at 0.003")
    assert "multi-step rate at 3, 6 by 0.5" in facts["schedule"]
    assert "objective" not in facts
    assert (facts["loss"], facts["miner"]) == ("margin (beta 1.2, margin 0.2)", "distance-weighted")
    assert facts["sampler"] == f"spc: {RECIPE.batch.per_class} of a class, {RECIPE.batch.size} a batch"
    assert summary(RECIPE)["parameters"] - facts["parameters"] == 97 * 64


def test_a_name_needs_only_the_modules_that_are_searched_before_it() -> None:
    code = """
import sys
from training.recipes import standard_recipe
standard_recipe("margin-conv4-glyphs")
print(*(paper for paper in ("revisiting", "group", "reality") if f"training.recipes.{paper}" in sys.modules))
"""
    assert run_python(code).strip() == ""
    assert list(RECIPES)[:2] == ["angular-r50-cub", "arcface-r50-cub"]
    assert "reality-arcface-ibn-cub" in RECIPES
    assert "margin-conv4-nothing" not in RECIPES
    assert len(RECIPES) == len(list(RECIPES)) == len(set(RECIPES))


def test_an_ensemble_names_its_members_and_adds_up() -> None:
    recipe = next(made for made in (make() for make in RECIPES.values()) if isinstance(made, EnsembleRecipe))
    facts = summary(recipe)
    assert facts["members"].split(", ") == [member.name for member in recipe.members]
    assert facts["parameters"] == sum(summary(member)["parameters"] for member in recipe.members)


@pytest.mark.parametrize("name", sorted({score.recipe for _, score in SCORES}))
def test_the_recipe_of_a_published_score_exists_and_fits_it(name: str) -> None:
    recipe = RECIPES[name]()
    for table, score in SCORES:
        if score.recipe == name:
            fields = (recipe.data.dataset, recipe.backbone.name, embedding_dim(recipe))
            assert fields == (score.dataset, score.backbone, score.dim)
            first = recipe.members[0] if isinstance(recipe, EnsembleRecipe) else recipe
            assert first.sources[0].split(",")[0] == table.paper.citation.split(",")[0]
