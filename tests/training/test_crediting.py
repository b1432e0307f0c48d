"""A model trained with another loss, miner or method is not said to be by the one that its recipe began with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.training.toys import noise
from training import api
from training.crediting import credited, credited_whole
from training.recipe import Ensemble, Recipe
from training.recipes import RECIPES
from training.recipes.settings import DIVA, REALITY, REVISITING, SHARING
from training.recipes.small import ROTH_2021, WANG_2020, WU_2017
from training.resolving import resolve
from zoo.cli.main import main
from zoo.hub.publish import prepare

MS = ("objective.loss=multi-similarity", "objective.miner=multi-similarity")


RHO = ("objective.miner=rho", "objective.miner_args.probability=0.3")


def heads(*names: str) -> str:
    return f"heads={json.dumps([{'name': name, 'dim': 64} for name in names])}"


def made(name: str, *settings: str) -> Recipe:
    recipe = credited_whole(resolve(name, settings), name)
    assert isinstance(recipe, Recipe)
    assert recipe.name == name  # it is the method's name that changes
    return recipe


@pytest.mark.parametrize(
    ("name", "settings", "method", "sources"),
    [
        ("margin-conv4-glyphs", MS, "ms", (REVISITING,)),
        ("margin-conv4-glyphs", MS[:1], "ms-distance-weighted", (REVISITING,)),
        ("margin-r50-cub", MS, "ms", (REVISITING,)),
        ("ms-conv4-glyphs", ("objective.loss=margin", "objective.miner=distance-weighted"), "margin", (WU_2017,)),
        # The margin loss's own beta is 1.2, as that of `margin`; `margin06` is the one of 0.6.
        ("contrastive-conv4-glyphs", ("objective.loss=margin",), "margin", (WU_2017,)),
        (
            "contrastive-conv4-glyphs",
            ("objective.loss=margin", "objective.loss_args.beta=0.6"),
            "margin06",
            (REVISITING,),
        ),
        ("contrastive-conv4-glyphs", ("objective.loss=margin", "objective.miner=rho"), "r-margin", (REVISITING,)),
        # Triplets are named by their miner; this one has no letter.
        ("margin-conv4-glyphs", ("objective.loss=triplet", "objective.miner=semihard"), "triplet-s", (REVISITING,)),
        ("margin-conv4-glyphs", ("objective.loss=triplet", "objective.miner=hard"), "triplet-hard", (REVISITING,)),
        # The miner alone: another recipe's where there is one, else it is said.
        ("margin-conv4-glyphs", ("objective.miner=random",), "margin-random", (WU_2017,)),
        ("margin-r50-cub", ("objective.miner=random",), "margin-random", (REVISITING,)),
        ("margin06-conv4-glyphs", ("objective.miner=semihard",), "margin06-semihard", (REVISITING,)),
        ("margin-conv4-glyphs", ("objective.miner=none",), "margin-unmined", (WU_2017,)),
        ("ms-conv4-glyphs", ("objective.miner=none",), "ms-unmined", (REVISITING,)),
        ("triplet-s-conv4-glyphs", ("objective.miner=random",), "triplet-r", (REVISITING,)),
        ("triplet-s-conv4-glyphs", ("objective.miner=hard",), "triplet-hard", (REVISITING,)),
        ("margin-conv4-glyphs", RHO, "r-margin", (REVISITING,)),
        ("margin-conv4-glyphs", (*RHO, "objective.miner_args.miner=random"), "r-margin-random", (REVISITING,)),
        ("r-margin-conv4-glyphs", ("objective.miner_args.miner=random",), "r-margin-random", (REVISITING,)),
        ("r-margin-conv4-glyphs", ("objective.miner=distance-weighted",), "margin", (WU_2017,)),
        ("r-margin-conv4-glyphs", ("objective.miner=hard",), "margin-hard", (WU_2017,)),
        ("ms-conv4-glyphs", (*RHO, "objective.miner_args.miner=random"), "r-ms-random", (REVISITING,)),
        ("triplet-s-conv4-glyphs", (*RHO, "objective.miner_args.miner=hard"), "r-triplet-hard", (REVISITING,)),
        ("reality-ms-ibn-cub", ("objective.miner=multi-similarity",), "reality-ms-miner", (REALITY,)),
        ("reality-margin-ibn-cub", ("objective.miner=random",), "reality-margin-random", (REALITY,)),
        # No recipe has this loss: Wu et al. have no part in it, while Revisiting says how is trained.
        ("margin-conv4-glyphs", ("objective.loss=dance",), "dance", ()),
        ("margin-r50-cub", ("objective.loss=dance",), "dance", (REVISITING,)),
        ("reality-margin-ibn-cub", ("objective.loss=lifted",), "lifted", (REALITY,)),
        ("reality-margin-ibn-cub", ("objective.loss=triplet",), "reality-triplet", (REALITY,)),
        ("margin-conv4-glyphs", ("objective.method=mixup",), "mixup", (REVISITING,)),
        ("margin-conv4-glyphs", ("objective.method=s2sd",), "s2sd", (ROTH_2021,)),
        ("mixup-conv4-glyphs", ("objective.method=plain",), "margin", (WU_2017,)),
        (
            "margin-conv4-glyphs",
            ("objective.method=cross-batch-memory", "objective.loss=contrastive", "objective.miner=none"),
            "xbm",
            (WANG_2020,),
        ),
        ("margin-conv4-glyphs", ("objective.method=diva", heads("discriminative", "shared")), "diva-ds", (DIVA,)),
        # More than a loss: the method is still that one, whatever loss it is put on.
        ("s2sd-conv4-glyphs", ("objective.loss=triplet",), "s2sd", (ROTH_2021,)),
        ("shared-conv4-glyphs", MS, "shared", (SHARING,)),
        ("shared-conv4-glyphs", ("objective.miner=random",), "shared", (SHARING,)),
        ("shared-triplet-s-r50-cub", ("objective.miner=hard",), "shared", (SHARING,)),
        ("shared-npair-disc-r50-cub", MS, "shared-disc", (SHARING,)),
        (
            "shared-conv4-glyphs",
            ("objective.loss=triplet", "objective.miner=semihard"),
            "shared-triplet-s",
            (SHARING,),
        ),
        # What was said by name is not corrected.
        ("margin-conv4-glyphs", (*MS, "method=mine"), "mine", (REVISITING,)),
        ("margin-conv4-glyphs", (*MS, 'sources=["me"]'), "ms", ("me",)),
    ],
)
def test_the_method_and_the_sources_are_those_of_the_objective(
    name: str, settings: tuple[str, ...], method: str, sources: tuple[str, ...]
) -> None:
    recipe = made(name, *settings)
    assert (recipe.method, recipe.sources) == (method, sources)


def test_what_leaves_loss_and_miner_alone_leaves_the_credit_alone() -> None:
    for name, settings in (
        ("margin-conv4-glyphs", ("objective.loss_args.beta=0.9", "optimizer.lr=1e-3")),
        ("margin-conv4-glyphs", ("objective.miner=distance-weighted", "objective.miner_args.nearest=0.4")),
        ("r-margin-conv4-glyphs", ("objective.miner_args.miner=distance-weighted",)),
        ("shared-triplet-s-r50-cub", ("objective.loss_args.margin=0.3",)),
        ("shared-conv4-glyphs", ("objective.method_args.gamma=1",)),
    ):
        standard = RECIPES[name]()
        assert isinstance(standard, Recipe)
        recipe = made(name, *settings)
        assert (recipe.method, recipe.sources) == (standard.method, standard.sources)


def test_every_recipe_is_found_again_by_its_objective() -> None:
    """Made of the margin twin by hand, each plain objective of the naming table has the name that it has there."""
    for name, make in RECIPES.items():
        there = make()
        if name.endswith("-conv4-glyphs") and isinstance(there, Recipe) and there.objective.method == "plain":
            if there.objective.method_args or there.objective.loss == "margin":
                continue  # regularisers of the margin loss, and that loss
            standard = RECIPES["margin-conv4-glyphs"]()
            assert isinstance(standard, Recipe)
            again = credited(dataclasses.replace(standard, objective=there.objective), standard)
            assert (again.method, again.sources) == (there.method, there.sources)


def test_members_of_an_ensemble_are_credited_each() -> None:
    pair = credited_whole(resolve("margin2-conv4-glyphs", MS), "margin2-conv4-glyphs")
    assert isinstance(pair, Ensemble)
    assert {(member.method, member.sources) for member in pair.members} == {("ms", (REVISITING,))}


def test_the_card_the_list_and_the_page_name_what_was_trained(
    own_zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    squares = dataclasses.replace(noise(side=36), golden=[np.full((32, 32, 3), 9, np.uint8)])
    monkeypatch.setattr(api.training_data, "load", lambda *_: squares)
    quick = ("schedule.epochs=1", "schedule.steps=1", "batch.size=8", *MS)
    settings = [part for setting in quick for part in ("--set", setting)]
    assert main(["train", "margin-conv4-glyphs", *settings, "--as", "mine", "--quiet", "--no-eval"]) == 0
    card = zoo.info("mine").card
    assert card is not None
    assert (card.method, card.sources) == ("ms", (REVISITING,))
    page = prepare(own_zoo / "models" / "mine", "org/mine", "main").readme
    assert "method `ms`" in page
    assert WU_2017 not in page
    record = json.loads((own_zoo / "models" / "mine" / "recipe.json").read_text())
    assert (record["origin"], record["recipe"]["method"]) == ("margin-conv4-glyphs", "ms")
    assert record["settings"] == {
        "batch.size": 8,
        "objective.loss": "multi-similarity",
        "objective.loss_args": {},
        "objective.miner": "multi-similarity",
        "schedule.epochs": 1,
        "schedule.steps": 1,
    }
    capsys.readouterr()
    assert main(["list", "--json", "--status", "trained"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)] == ["ms"]
