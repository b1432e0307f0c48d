"""Models with another loss, miner or method than their recipe have a method name of their own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.training.toys import noise
from training import api
from training.api import origin_facts
from training.overrides import resolve, with_custom_name
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import RECIPES
from training.recipes.small import WU_2017
from zoo.cli.main import main
from zoo.hub.push import prepare

MS = ("objective.loss=ms", "objective.miner=ms")
RHO = ("objective.miner=rho", "objective.miner_args.probability=0.3")


def heads(*names: str) -> str:
    return f"heads={json.dumps([{'name': name, 'dim': 64} for name in names])}"


def made(name: str, *settings: str) -> Recipe:
    recipe = with_custom_name(resolve(name, settings), name)
    assert isinstance(recipe, Recipe)
    assert recipe.name == name  # it is the method's name that changes
    return recipe


@pytest.mark.parametrize(
    ("name", "settings", "method"),
    [
        ("margin-conv4-glyphs", MS, "custom-ms"),
        ("margin-r50-cub", MS[:1], "custom-ms"),
        ("margin-conv4-glyphs", ("objective.miner=random",), "custom-margin"),
        ("margin-conv4-glyphs", ("objective.miner=none",), "custom-margin"),
        ("margin-conv4-glyphs", RHO, "custom-margin"),
        ("r-margin-conv4-glyphs", ("objective.miner_args.miner=random",), "custom-margin"),
        ("r-margin-conv4-glyphs", ("objective.miner=distance-weighted",), "custom-margin"),
        ("reality-margin-ibn-cub", ("objective.loss=triplet",), "custom-triplet"),
        ("margin-conv4-glyphs", ("objective.method=mixup",), "custom-mixup"),
        ("mixup-conv4-glyphs", ("objective.method=plain",), "custom-margin"),
        ("margin-conv4-glyphs", ("objective.method=diva", heads("discriminative", "shared")), "custom-diva"),
        ("shared-conv4-glyphs", MS, "custom-sharing"),
    ],
)
def test_another_objective_is_a_custom_method_without_the_papers_of_its_recipe(
    name: str, settings: tuple[str, ...], method: str
) -> None:
    recipe = made(name, *settings)
    assert (recipe.method, recipe.sources) == (method, ())
    assert origin_facts(recipe, name)["origin"] == name


def test_a_method_and_sources_that_were_set_by_name_stay() -> None:
    recipe = made("margin-conv4-glyphs", *MS, "method=mine", 'sources=["me"]')
    assert (recipe.method, recipe.sources) == ("mine", ("me",))


def test_settings_that_keep_loss_and_miner_keep_the_method() -> None:
    for name, settings in (
        ("margin-conv4-glyphs", ("objective.loss_args.beta=0.9", "optimizer.lr=1e-3")),
        ("margin-conv4-glyphs", ("objective.miner=distance-weighted", "objective.miner_args.cutoff=0.4")),
        ("r-margin-conv4-glyphs", ("objective.miner_args.miner=distance-weighted",)),
        ("shared-triplet-s-r50-cub", ("objective.loss_args.margin=0.3",)),
        ("shared-conv4-glyphs", ("objective.method_args.gamma=1",)),
    ):
        standard = RECIPES[name]()
        assert isinstance(standard, Recipe)
        recipe = made(name, *settings)
        assert (recipe.method, recipe.sources) == (standard.method, standard.sources)


def test_every_unchanged_recipe_keeps_its_method_and_sources() -> None:
    for name, make in RECIPES.items():
        assert with_custom_name(make(), name) == make()


def test_each_member_of_an_ensemble_is_custom() -> None:
    pair = with_custom_name(resolve("margin2-conv4-glyphs", MS), "margin2-conv4-glyphs")
    assert isinstance(pair, EnsembleRecipe)
    assert {(member.method, member.sources) for member in pair.members} == {("custom-ms", ())}


def test_the_card_the_list_and_the_page_name_what_was_trained(
    own_zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    squares = dataclasses.replace(noise(side=36), golden=[np.full((32, 32, 3), 9, np.uint8)])
    monkeypatch.setattr(api.training_data, "prepare", lambda *_: squares)
    quick = ("schedule.epochs=1", "schedule.steps=1", "batch.size=8", *MS)
    settings = [part for setting in quick for part in ("--set", setting)]
    assert main(["train", "margin-conv4-glyphs", *settings, "--as", "mine", "--quiet", "--no-eval"]) == 0
    card = zoo.info("mine").card
    assert card is not None
    assert (card.method, card.sources) == ("custom-ms", ())
    page = prepare(own_zoo / "models" / "mine", "org/mine", "main").readme
    assert "`custom-ms`" in page
    assert WU_2017 not in page
    record = json.loads((own_zoo / "models" / "mine" / "recipe.json").read_text())
    assert (record["origin"], record["recipe"]["method"]) == ("margin-conv4-glyphs", "custom-ms")
    assert record["settings"] == {
        "batch.size": 8,
        "objective.loss": "ms",
        "objective.loss_args": {"alpha": 2.0, "beta": 40.0, "base": 0.5, "kept_only": False},
        "objective.miner": "ms",
        "objective.miner_args": {"epsilon": 0.1},
        "schedule.epochs": 1,
        "schedule.steps": 1,
    }
    capsys.readouterr()
    assert main(["list", "--json", "--status", "trained"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)] == ["custom-ms"]
