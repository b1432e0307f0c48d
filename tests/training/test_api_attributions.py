"""Names, methods, data sets, papers and licences that a model gets: only those that belong to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import zoo
from tests.raising import raises
from tests.training.toys import noise
from training import api
from training.api import origin_facts, recipe_card
from training.overrides import changed_settings, resolve, with_custom_name
from training.recipe import Recipe
from training.recipes import RECIPES
from training.recipes.small import WU_2017
from zoo.cli.main import main
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError
from zoo.evaluation.split import default_dataset
from zoo.models.card import Card, Origin, read_card
from zoo.models.network import Network, create_trunk

PAPER = "margin-r50-cub"
PIXELS = Preprocessing(40, 32)
BASE = Card("base", "diva", "r50", "cub", "resnet50", 8, PIXELS, licence="mit", sources=("base's paper",))
TEACHER = dataclasses.replace(BASE, name="teacher", licence="bsd", sources=("teacher's paper",))
CONV4 = ("backbone.architecture=conv4", "backbone.pretrained=false", "backbone.freeze_norm=none")


def made(*settings: str, name: str = PAPER) -> Recipe:
    recipe = with_custom_name(resolve(name, settings), name)
    assert isinstance(recipe, Recipe)
    return recipe


def card_of(recipe: Recipe, base: Card | None = None, teacher: Card | None = None) -> Card:
    return recipe_card(recipe, Network(create_trunk("conv4", 3, {}), nn.ModuleDict()), base, teacher)


@pytest.mark.parametrize(
    "setting",
    [
        "backbone.architecture=resnet18",
        "backbone.args.drop_rate=0.1",
        "backbone.pretrained=false",
        "backbone.pretrained=timm/resnet50.a1_in1k",
        "backbone.freeze_norm=none",
        "heads=[]",
        'heads=[{"name": "embedding", "dim": 64}]',
        "objective.method=mixup",
        "objective.loss=triplet",
        "objective.loss_args.margin=0.3",
        "objective.miner=random",
        "objective.miner_args.cutoff=0.4",
        "batch.sampler=spc-r",
        "batch.size=56",
        "batch.per_class=4",
        "data.dataset=folder",
        "data.validation=0.1",
        "data.side=200",
        "preprocessing.crop=160",
        "preprocessing.mean=[0.5,0.5,0.5]",
        "augmentation.flip=0",
        "schedule.epochs=0",
        "schedule.epochs=149",
        "schedule.steps=1",
        "schedule.average=0.9",
        "optimizer.lr=0",
        "optimizer.name=adamw",
        "precision=bf16",
    ],
)
def test_a_setting_that_changes_the_model_takes_the_papers_scores_from_it(setting: str) -> None:
    facts = origin_facts(made(setting), PAPER)
    assert Origin(facts["origin"], facts["settings"]).exact_recipe is None


@pytest.mark.parametrize("setting", ["schedule.epochs=150", "backbone.pretrained=timm/resnet50.tv_in1k", "seed=3"])
def test_a_setting_that_keeps_the_model_keeps_the_papers_scores(setting: str) -> None:
    facts = origin_facts(made(setting), PAPER)
    assert Origin(facts["origin"], facts["settings"]).exact_recipe == PAPER


def test_a_converted_public_file_is_the_recipes_start(tmp_path: Path) -> None:
    """`zoo convert` writes the file's SHA-256; of googlenet's the first eight digits are known, from its name."""
    from safetensors.numpy import save_file

    folders = {digits: tmp_path / digits for digits in ("1378be20", "1378be21")}
    for digits, folder in folders.items():
        folder.mkdir()
        save_file({"x": np.zeros(1)}, folder / "model.safetensors", {"sha256": digits + 56 * "0"})
    standard = RECIPES["shared-gn-cub"]()
    changed = {
        digits: changed_settings(made(f"backbone.pretrained={folder}", name="shared-gn-cub"), standard)
        for digits, folder in folders.items()
    }
    assert (changed["1378be20"], list(changed["1378be21"])) == ({}, ["backbone.pretrained"])


def test_the_backbone_is_named_by_its_architecture() -> None:
    expected = {"conv4": "conv4", "resnet50.a1_in1k": "r50", "resnet18.tv_in1k": "resnet18"}
    assert {a: made(f"backbone.architecture={a}").backbone.name for a in expected} == expected
    assert made("backbone.architecture=resnet18", "backbone.name=r18").backbone.name == "r18"


@pytest.mark.parametrize(
    "settings",
    [
        ("backbone.architecture=conv4", "backbone.name=r50"),
        ("objective.loss=triplet", "method=diva"),
        ("method=multi-similarity",),
    ],
)
def test_the_name_of_another_backbone_or_method_is_refused(settings: tuple[str, ...]) -> None:
    with raises(RecipeError, "unknown-name"):
        made(*settings)


@pytest.mark.parametrize(
    ("settings", "base", "expected"),
    [
        (("heads=[]", *CONV4), None, ("untrained", "none", (), "unknown")),
        (CONV4, None, ("untrained", "none", (), "unknown")),
        (("heads=[]",), None, ("pretrained", "tv_in1k", (), "bsd-3-clause")),
        ((), None, ("untrained", "tv_in1k", (), "bsd-3-clause")),
        (("heads=[]",), BASE, ("diva", "cub", ("base's paper",), "mit")),
        ((), BASE, ("untrained", "cub", ("base's paper",), "mit")),
    ],
)
@pytest.mark.parametrize("without_steps", ["schedule.epochs=0", "optimizer.lr=0"])
def test_a_model_that_learned_nothing_gets_nothing_from_its_recipe(
    settings: tuple[str, ...], base: Card | None, expected: tuple[Any, ...], without_steps: str
) -> None:
    card = card_of(made(*settings, without_steps, "data.dataset=folder"), base, TEACHER)
    assert (card.method, card.dataset, card.sources, card.licence) == expected
    assert "not trained" in card.description
    assert TEACHER.name not in card.description


def test_a_trained_model_names_what_it_learned_from() -> None:
    recipe = made("data.dataset=folder")
    card = card_of(recipe, BASE, TEACHER)
    assert (card.method, card.dataset, card.licence) == ("margin", "folder", "mit AND bsd")
    assert card.sources == ("base's paper", "teacher's paper", *recipe.sources)
    assert card.description.startswith("Trained from base. Distilled from teacher (fingerprint ")


@pytest.mark.parametrize(
    ("start", "expected"),
    [(True, "bsd-3-clause"), (False, "unknown"), ("stated", "cc-by-nc-4.0"), ("silent", "unknown")],
)
def test_weights_have_the_licence_that_their_source_states(tmp_path: Path, start: bool | str, expected: str) -> None:
    config: dict[str, Any] = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3}
    if isinstance(start, str):
        stated = {"license": expected} if start == "stated" else {}
        text = json.dumps({"architecture": "resnet50", "pretrained_cfg": config | stated})
        (tmp_path / "config.json").write_text(text)
        (tmp_path / "model.safetensors").touch()
        start = str(tmp_path)
    recipe = made()
    recipe = dataclasses.replace(recipe, backbone=dataclasses.replace(recipe.backbone, pretrained=start))
    assert card_of(recipe).licence == expected


def test_an_untrained_model_is_listed_as_such(
    own_zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding: it was listed as "margin, r50" with the paper's score of a ResNet-50 on CUB-200-2011."""
    squares = dataclasses.replace(noise(side=36), golden=[np.full((32, 32, 3), 9, np.uint8)])
    monkeypatch.setattr(api.training_data, "prepare", lambda *_: squares)
    monkeypatch.setattr(api.training_data, "training_labels", lambda *_: squares.labels)
    monkeypatch.setattr(api.datasets, "load_dataset", lambda *_: None)
    settings = ("heads=[]", "schedule.epochs=0", "batch.size=8", "preprocessing.crop=32", "preprocessing.resize=36")
    options = [part for setting in (*settings, *CONV4) for part in ("--set", setting)]
    assert main(["train", PAPER, *options, "--as", "plain", "--quiet", "--no-eval"]) == 0
    capsys.readouterr()
    model = zoo.info("plain")
    assert (model.method, model.backbone, model.dataset, model.published) == ("untrained", "conv4", "none", [])
    assert default_dataset(own_zoo / "models" / "plain", read_card(own_zoo / "models" / "plain")) == "cub"
    assert main(["list", "--status", "trained"]) == 0
    listed = capsys.readouterr().out
    assert "plain" in listed
    assert not {"margin", "r50", "0.6309"} & set(listed.split())
    assert main(["push", "plain", "me/plain", "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert "note: the licence is unknown" in page
    assert "Licence: unknown (not stated)." in page
    assert WU_2017 not in page
    assert RECIPES[PAPER]().sources[0] not in page


@pytest.mark.parametrize(
    ("dataset", "licence"),
    [
        ("cub2010", "mit AND research and evaluation only"),
        ("cars-half", "mit AND research and evaluation only"),
        ("cub", "mit"),
    ],
)
def test_terms_of_photographs_pass_on_to_models_that_learn_from_them(dataset: str, licence: str) -> None:
    assert card_of(made(*CONV4, f"data.dataset={dataset}"), base=BASE).licence == licence
    assert card_of(made(*CONV4, f"data.dataset={dataset}", "schedule.epochs=0"), base=BASE).licence == "mit"
