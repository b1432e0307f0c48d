from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from tests.training.methods.batches import method
from training.api import resolve
from training.data import TrainingData
from training.methods.method import Method
from training.recipe import Recipe
from training.recipes import RECIPES, catalogue
from training.run import Place, Run
from training.settings import override
from zoo.cards import Head
from zoo.errors import RecipeError
from zoo.registry import RECIPES as CATALOGUE_FILE

RECIPE = RECIPES["margin-conv4-glyphs"]()


def build(recipe: Recipe) -> Method:
    """The recipe's method on a toy trunk, for 50 classes of 20 samples."""
    return method(recipe.objective, [i // 20 for i in range(1000)], {head.name: head.dim for head in recipe.heads})


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_named_as_its_parts_and_can_be_built(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.name == name == f"{recipe.method}-{recipe.backbone.name}-{recipe.data.dataset}"
    build(recipe)
    json.dumps(recipe.to_json())


def test_the_catalogue_in_zoo_is_what_the_recipes_say() -> None:
    assert json.loads(CATALOGUE_FILE.read_text()) == catalogue(), "run: python -m training.recipes"


def test_override() -> None:
    changed = override(
        RECIPE,
        [
            "optimizer.lr=1e-5",
            "schedule.epochs=3",
            "objective.loss_args.beta=0.6",
            "objective.miner=none",
            'heads=[{"name": "a", "dim": 3}]',
            "preprocessing.mean=[0, 0, 1]",
            "augmentation.flip=1",
            "name=other",
        ],
    )
    assert changed.optimizer.lr == 1e-5
    assert changed.schedule.epochs == 3
    assert changed.objective.loss_args == {"beta": 0.6, "margin": 0.2}
    assert changed.objective.miner is None
    assert changed.heads == (Head("a", 3),)
    assert changed.preprocessing.mean == (0, 0, 1)
    assert changed.augmentation.flip == 1.0
    assert changed.name == "other"
    assert RECIPES["margin-conv4-glyphs"]() == RECIPE
    assert changed.digest != RECIPE.digest


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("optimiser.lr=1", "Did you mean 'optimizer'"),
        ("optimizer.learning=1", "no setting 'optimizer.learning'"),
        ("optimizer.lrr=1", "Did you mean 'lr'"),
        ("optimizer.lr=fast", "optimizer.lr must be float"),
        ("schedule.epochs=1.5", "schedule.epochs must be int"),
        ("schedule.epochs=true", "schedule.epochs must be int"),
        ("optimizer=adam", r"set one of optimizer\.name"),
        ("optimizer.lr.x=1", "plain value"),
        ("lr", "write key=value"),
        ("objective.loss_args.beta.foo=0.6", "plain value"),
        ("objective.miner.x=1", "plain value"),
        ("optimizer.lr=-1", "optimizer.lr must be 0 or more"),
        ("optimizer.lr=NaN", "optimizer.lr must be 0 or more"),
        ("augmentation.scale=0", "a factor from 1"),
        ("augmentation.oversample=0", "from 1 to 8"),
        ("augmentation.flip=2", "from 0 to 1"),
        ("schedule.average=2", "from 0 to below 1"),
        ("schedule.warmup=1", "below 1"),
        ("schedule.name=onecycle", "constant or one-cycle"),
        ("data.turns=3", "1 or 4"),
        ("batch.size=0", "1 or more"),
        ("seed=-1", "seed must be 0 or more"),
        ("precision=fp8", "fp32 or bf16"),
        ("name=../x", "lower-case letters"),
        ("preprocessing.mode=XYZ", "grey"),
        ('heads=[{"name": "a", "dim": "x"}]', "heads must be"),
        ('heads=[{"dim": 3}]', "heads must be"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        override(RECIPE, [setting])


def test_settings_that_are_valid_only_together() -> None:
    grey = override(RECIPE, ["preprocessing.mode=L", "preprocessing.mean=[0.5]", "preprocessing.std=[0.5]"])
    assert grey.preprocessing.channels == 1
    with pytest.raises(RecipeError, match="set as a whole already"):
        override(RECIPE, ["optimizer=adam", "optimizer.lr=1"])


def test_another_loss_or_miner_drops_the_arguments_of_the_old_one() -> None:
    other = override(RECIPE, ["objective.loss=triplet", "objective.miner=semihard"]).objective
    assert (other.loss, other.loss_args, other.miner, other.miner_args) == ("triplet", {}, "semihard", {})
    build(dataclasses.replace(RECIPE, objective=other))
    with_own = override(RECIPE, ["objective.loss_args.margin=0.3", "objective.loss=triplet"]).objective
    assert with_own.loss_args == {"margin": 0.3}
    same = override(RECIPE, ["objective.loss=margin"]).objective
    assert same == RECIPE.objective


@pytest.mark.parametrize("name", ["My Model", "../x", "/x", ""])
def test_a_name_that_no_model_may_have_is_refused_at_once(name: str) -> None:
    with pytest.raises(RecipeError, match="lower-case"):
        resolve("margin-conv4-glyphs", rename=name)


def test_resolve() -> None:
    recipe = resolve("margin-conv4-glyphs", ["batch.size=64"], seed=7, rename="mine")
    assert (recipe.batch.size, recipe.seed, recipe.name) == (64, 7, "mine")
    with pytest.raises(RecipeError, match="Did you mean 'margin-conv4-glyphs'"):
        resolve("margin-conv4-glyps")


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("objective.loss=margn", "Did you mean 'margin'"),
        ("objective.miner=distance-weighed", "Did you mean 'distance-weighted'"),
        ("objective.method=plane", "Did you mean 'plain'"),
        ("objective.loss_args.beta=abc", "could not convert"),
        ('heads=[{"name": "a", "dim": 3}, {"name": "b", "dim": 3}]', "one head, not 2"),
        ("objective.loss=none", "needs a loss"),
        ("objective.loss_args.alpha=1", "unexpected keyword argument 'alpha'"),
        ("objective.miner_args.nearst=1", "unexpected keyword argument 'nearst'"),
    ],
)
def test_unknown_parts_of_the_objective_are_named(setting: str, match: str) -> None:
    recipe = override(RECIPE, [setting])
    with pytest.raises(RecipeError, match=match):
        build(recipe)


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("preprocessing.crop=4", "does not take images of 4 x 4"),
        ("backbone.args.global_pool=", "must pool"),
        ("optimizer.name=adamm", "adam"),
    ],
)
def test_a_backbone_that_cannot_take_the_pixels_is_refused_before_training(setting: str, match: str) -> None:
    data = TrainingData(torch.zeros(6, 40, 40, 3, dtype=torch.uint8), np.arange(6) // 2, 3, 1, None, [])
    with pytest.raises(RecipeError, match=match):
        Run(override(RECIPE, [setting]), data, 1, Place(torch.device("cpu")))
