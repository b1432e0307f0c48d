"""Recipes: the facts that `zoo info` shows, and the published scores that name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.children import run_python
from training.recipe import EnsembleRecipe, Recipe, same_recipe
from training.recipes import RECIPES, embedding_dim, summary
from training.recipes.common import TRUNKS, trunk_size
from training.studies.papers import STUDIES
from training.studies.study import resolve_recipes
from zoo.models.network import create_trunk, feature_count
from zoo.models.published import published_tables

SCORES = [(table, score) for table in published_tables() for score in table.scores if score.recipe]

RECIPE = RECIPES["margin-conv4-glyphs"]()
assert not isinstance(RECIPE, EnsembleRecipe)


def members() -> Iterator[Recipe]:
    """Return all recipes, and the members of the ensembles."""
    for make in RECIPES.values():
        recipe = make()
        yield from recipe.members if isinstance(recipe, EnsembleRecipe) else (recipe,)


def test_the_parameters_of_conv4_by_hand() -> None:
    # Four 3 x 3 convolutions without bias, each with a scale and a shift of batch norm a channel; a head of 64.
    trunk = sum(9 * a * b + 2 * b for a, b in pairwise([3, 32, 64, 80, 96]))
    assert summary(RECIPE)["parameters"] == trunk + 97 * 64


@pytest.mark.slow
def test_the_sizes_of_trunks_are_those_of_the_networks() -> None:
    backbones = {(recipe.backbone.name, recipe.preprocessing.channels): recipe for recipe in members()}
    assert {name for name, _ in backbones} == {*TRUNKS, "conv4"}
    for (name, channels), recipe in backbones.items():
        with torch.device("meta"):
            trunk = create_trunk(recipe.backbone.architecture, channels, recipe.backbone.args)
        count = sum(parameter.numel() for parameter in trunk.parameters())
        assert trunk_size(recipe.backbone, recipe.preprocessing.channels) == (count, feature_count(trunk)), name


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


def test_the_recipe_of_a_published_score_exists_and_fits_it() -> None:
    for table, score in SCORES:
        recipe = RECIPES[score.recipe]()
        fields = (recipe.data.dataset, recipe.backbone.name, embedding_dim(recipe))
        assert fields == (score.dataset, score.backbone, score.dim), score.recipe
        first = recipe.members[0] if isinstance(recipe, EnsembleRecipe) else recipe
        assert first.sources[0].split(",")[0] == table.paper.citation.split(",")[0], score.recipe


RHO = {"cub": 300.0, "cars": 100.0, "sop": 50.0}
"""DiVA, table 1: the weight of the decorrelation with Inception; alpha is 0.1."""


@pytest.mark.parametrize("dataset", RHO)
def test_table_2_of_diva_has_inception_at_a_constant_rate_with_its_constants(dataset: str) -> None:
    """Sections 4 and 4.1: 512 numbers in all (510 of three tasks), Adam at 1e-5, decay 5e-4, 200 or 150 epochs."""
    study = STUDIES["diva/table-2"]
    made = {arm.label: resolve_recipes(study, arm, dataset, 0) for arm in study.arms}
    assert {"diva-d", "diva-ds", "diva-di", "diva-dn", "diva-dsi", "diva-dsn", "diva-din", "diva"} <= set(made)
    for label, recipes in made.items():
        separate = label == "diva-separate"
        assert len(recipes) == (4 if separate else 1)
        assert sum(recipe.dim for recipe in recipes) == (510 if len(recipes[0].heads) == 3 else 512)
        for recipe in recipes:
            args = recipe.objective.method_args
            assert (recipe.backbone.name, recipe.schedule.name, recipe.schedule.milestones) == ("ibn", "constant", ())
            assert recipe.schedule.epochs == (150 if dataset == "sop" else 200)
            assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("adam", 1e-5, 5e-4)
            if not separate:
                assert args["alpha"] == 0.1
                assert args["rho"] == (0 if label == "diva without decorrelation" else RHO[dataset])
    whole = {head.name for head in made["diva"][0].heads}
    assert whole == {"discriminative", "shared", "intra", "dance"}


def test_the_rate_of_table_3_of_diva_falls_once() -> None:
    """DiVA, table 1: after epoch 70 / 160 / 100 with Inception, by .3."""
    for dataset, epoch in (("cub", 70), ("cars", 160), ("sop", 100)):
        made = RECIPES[f"diva-ibn-{dataset}"]()
        assert isinstance(made, Recipe)
        assert (made.schedule.name, made.schedule.milestones, made.schedule.gamma) == ("multi-step", (epoch,), 0.3)


def test_a_recipe_of_a_paper_computes_in_fp32_and_shows_its_departures() -> None:
    """The papers' code trains in fp32. `zoo train NAME --show` prints `to_json`."""
    for member in members():
        if member.data.dataset not in ("cub", "cars", "sop"):
            continue
        assert member.precision == "fp32", member.name
        shown = member.to_json()["departures"]
        assert shown, member.name
        text = " ".join(shown)
        if member.optimizer.momentum:
            assert "momentum" in text, member.name
            assert "weight decay" in text, member.name
        if member.augmentation.crop in ("resized", "window"):
            assert "antialiasing" in text, member.name


def test_what_makes_a_recipe_unlike_its_paper_is_said() -> None:
    """The faults: squeezed training images, a loss without a lower bound, and twice the batches were not mentioned."""
    for member in members():
        said, args = " ".join(member.departures), member.record["objective"]["method_args"]
        contrasts = [args["auxiliary"][task] for task in ("dance", "nce") if task in (args.get("auxiliary") or {})]
        if member.augmentation.crop == "squeezed" and not member.preprocessing.squeeze:
            assert "squeezed" in said, member.name
        if not all(contrast["with_positive"] for contrast in contrasts):
            assert "no lower bound" in said, member.name
        if args.get("arm") in ("discriminative", "shared"):
            assert "twice as many" in said, member.name


def test_departures_do_not_make_another_recipe() -> None:
    told = replace(RECIPE, departures=("A sentence.",))
    assert told.digest == RECIPE.digest
    assert same_recipe(told.record, RECIPE)
    assert not same_recipe(replace(told, seed=1).record, RECIPE)
