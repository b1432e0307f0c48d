"""The origin of a model: its recipe is recorded with the changed settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from tests.training.toys import noise
from training import api
from training.api import concatenate, origin_facts
from training.overrides import changed_settings, resolve
from training.recipe import Recipe
from training.recipes import RECIPES
from zoo.cli.main import main
from zoo.data.dataset import Dataset
from zoo.models.card import read_card, read_origin
from zoo.models.verify import verify_records


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("diva-r50-cub", [], {}),
        ("diva-r50-cub", ["schedule.epochs=1"], {"schedule.epochs": 1}),
        ("diva-r50-cub", ["schedule.epochs=200"], {}),  # as the paper has it
        ("diva-r50-cub", ["optimizer.lr=2e-5", "batch.size=56"], {"optimizer.lr": 2e-5, "batch.size": 56}),
        ("margin-r50-cub", ["objective.loss_args.beta=0.6"], {"objective.loss_args.beta": 0.6}),
        ("margin-r50-cub", ["objective.miner=random"], {"objective.miner": "random", "objective.miner_args": {}}),
        ("diva-r50-cub", ["backbone.pretrained=org/w"], {"backbone.pretrained": "org/w"}),
        ("diva-ensemble-r50-cub", ["schedule.epochs=1"], {"schedule.epochs": 1}),
    ],
)
def test_settings_are_recorded_with_the_recipe(name: str, settings: list[str], expected: dict[str, Any]) -> None:
    for seed, rename in ((None, None), (3, "mine")):
        facts = origin_facts(resolve(name, settings, seed, rename), name)
        assert facts == {"origin": name, "settings": expected}


def test_other_recipes_have_no_origin() -> None:
    recipe = RECIPES["margin-conv4-glyphs"]()
    assert isinstance(recipe, Recipe)
    kept = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, features="f.safetensors"))
    for made in (kept, dataclasses.replace(recipe, name="toy")):
        assert origin_facts(made) == {"origin": None, "settings": {}}


def test_members_that_differ_are_named_by_number() -> None:
    pair = RECIPES["group2-ibn-cub"]()
    assert not isinstance(pair, Recipe)
    first, second = pair.members
    other = dataclasses.replace(pair, members=(first, dataclasses.replace(second, precision="bf16")))
    assert changed_settings(other, pair) == {"members.1.precision": "bf16"}
    assert changed_settings(dataclasses.replace(pair, members=(*pair.members, first)), pair) == {"members": 3}


def test_the_command_records_the_origin_under_any_name(own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squares = dataclasses.replace(noise(side=36), golden=[np.full((32, 32, 3), 9, np.uint8)])
    monkeypatch.setattr(api.training_data, "prepare", lambda *_: squares)
    quick = ("schedule.epochs=1", "schedule.steps=1", "batch.size=8")
    settings = [part for setting in quick for part in ("--set", setting)]
    assert (
        main(["train", "margin-conv4-glyphs", *settings, "--as", "mine-seed1", "--seed", "1", "--quiet", "--no-eval"])
        == 0
    )
    record = json.loads((own_zoo / "models" / "mine-seed1" / "recipe.json").read_text())
    expected = {"batch.size": 8, "schedule.epochs": 1, "schedule.steps": 1}
    assert (record["origin"], record["settings"]) == ("margin-conv4-glyphs", expected)
    of = {"name": "mine-seed1", "fingerprint": read_card(own_zoo / "models" / "mine-seed1").fingerprint}
    assert record["model"] == of
    assert [check.ok for check in verify_records(own_zoo / "models" / "mine-seed1")] == [True, None]
    origin = zoo.info("mine-seed1").origin
    assert origin == read_origin(own_zoo / "models" / "mine-seed1")
    assert (origin.recipe, origin.changed) == ("margin-conv4-glyphs", expected)


def test_other_images_and_joined_models_have_no_origin(own_zoo: Path) -> None:
    recipe = resolve(
        "margin-conv4-glyphs", ["schedule.epochs=1", "schedule.steps=1", "batch.size=8", "data.validation=0"]
    )
    assert isinstance(recipe, Recipe)
    images = list(np.random.default_rng(0).integers(0, 256, (16, 40, 40, 3), np.uint8))
    pictures = Dataset("mine", "train", images, np.arange(16) % 4, tuple("abcd"), list("0123456789abcdef"))
    for seed in range(2):
        made = dataclasses.replace(recipe, name=f"margin{seed}", seed=seed)
        api.train(made, progress=False, dataset=pictures, origin="margin-conv4-glyphs")
    models = own_zoo / "models"
    concatenate([models / "margin0", models / "margin1"], models / "margin2-conv4-glyphs", "margin2-conv4-glyphs")
    for name in ("margin0", "margin2-conv4-glyphs"):
        assert read_origin(models / name).recipe is None
