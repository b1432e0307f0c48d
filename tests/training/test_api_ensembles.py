"""Ensembles: their embedding is the members', concatenated and normalised; tests/exports/test_ensembles.py has ONNX."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from tests.models import CARD, make_model
from tests.raising import raises
from tests.training.toys import noise, recipe
from training import api
from training.api import concatenate
from training.recipe import EnsembleRecipe, Schedule
from zoo import paths
from zoo.cli.main import main, run
from zoo.data.preprocessing import Preprocessing
from zoo.errors import ModelFolderError, RecipeError, UsageError, ZooError
from zoo.models.card import Head, read_card
from zoo.models.network import EnsembleNetwork, create_trunk
from zoo.models.verify import verify, verify_records

HEADLESS = dataclasses.replace(
    CARD, name="headless", heads=(), dim=6, architecture_args={"widths": [4, 4, 4, 6]}, sources=("b", "a")
)
IMAGES = [np.random.default_rng(i).integers(0, 256, (40, 50 - i, 3), np.uint8) for i in range(5)]


@pytest.fixture
def members(tmp_path: Path) -> list[Path]:
    """Write a model with two heads, one without a head, and one like the first with other weights."""
    cards = (dataclasses.replace(CARD, sources=("a",)), HEADLESS, dataclasses.replace(CARD, name="sister"))
    folders = [tmp_path / card.name for card in cards]
    for seed, (folder, card) in enumerate(zip(folders, cards, strict=True)):
        make_model(folder, card, seed)
    return folders


def joined(folders: list[Path]) -> np.ndarray:
    rows = np.concatenate([zoo.load(folder).embed(IMAGES).astype(np.float64) for folder in folders], axis=1)
    return rows / np.sqrt((rows**2).sum(1, keepdims=True))


def test_the_embedding_is_the_members_embeddings_concatenated(members: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "out" / "three"
    card = concatenate(members, folder, "three")
    assert card == read_card(folder)
    assert card.dim == 12 + 6 + 12
    assert card.sources == ("a", "b")
    assert (card.method, card.backbone, card.dataset) == ("ensemble", "conv4", "noise")
    expected = joined(members)
    assert np.abs(zoo.load(folder).embed(IMAGES) - expected).max() < 1e-6
    assert all(check.ok for check in verify(folder))
    assert [check.ok for check in verify_records(folder)] == [True, None]
    recipe = json.loads((folder / "recipe.json").read_text())
    assert recipe["model"] == {"name": "three", "fingerprint": card.fingerprint}
    assert [member["name"] for member in recipe["ensemble"]] == ["toy-conv4-noise", "headless", "sister"]
    # An ensemble is a model like any other, and so may be a member: three of dimension 30, 12 and 6.
    concatenate([folder, *members[:2]], tmp_path / "nested", "nested")
    assert np.abs(zoo.load(tmp_path / "nested").embed(IMAGES) - joined([folder, *members[:2]])).max() < 1e-6


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"crop": 16}, "crop 20 and 16"),
        ({"resize": 30, "mean": (0.5, 0.5, 0.5)}, "resize 24 and 30, mean (0.5, 0.4, 0.3) and"),
    ],
)
def test_members_of_other_preprocessing_are_refused(
    members: list[Path], tmp_path: Path, change: dict[str, object], value: str
) -> None:
    values = dataclasses.asdict(CARD.preprocessing)
    other = dataclasses.replace(HEADLESS, name="other", preprocessing=Preprocessing(**{**values, **change}))
    make_model(tmp_path / "other", other)
    with raises(UsageError, "conflicting-options") as caught:
        concatenate([members[0], tmp_path / "other"], tmp_path / "out", "out")
    assert value in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_models_that_cannot_be_joined_are_refused(members: list[Path], tmp_path: Path) -> None:
    with raises(UsageError, "invalid-value"):
        concatenate(members[:1], tmp_path / "out", "out")
    with raises(UsageError, "overwrites-input"):
        concatenate(members, members[1], "headless")
    weights = members[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ModelFolderError):
        concatenate(members, tmp_path / "out", "out")
    assert not (tmp_path / "out").exists()


def test_models_of_several_data_sets_name_them_all(members: list[Path], tmp_path: Path) -> None:
    other = dataclasses.replace(HEADLESS, name="other", dataset="signal", licence="mit")
    make_model(tmp_path / "other", other)
    card = concatenate([members[0], tmp_path / "other"], tmp_path / "out", "out")
    assert (card.dataset, card.licence) == ("noise+signal", "unknown AND mit")


def test_the_architecture_joins_unit_embeddings() -> None:
    args = {"members": [{"architecture": "conv4", "args": {"widths": [2, 2, 2, 3]}, "heads": [vars(Head("a", 4))]}]}
    trunk = create_trunk("ensemble", 1, args).eval()
    assert isinstance(trunk, EnsembleNetwork)
    assert trunk.num_features == 4
    assert torch.allclose(trunk(torch.randn(5, 1, 16, 16)).norm(dim=1), torch.ones(5), atol=1e-6)


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ({}, "member"),
        ({"members": [{"architecture": "conv5"}]}, "'conv5'"),
        ({"members": [{"architecture": "conv4", "head": []}]}, "'head'"),
    ],
)
def test_a_wrong_description_is_refused(args: dict[str, object], value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        create_trunk("ensemble", 1, args)
    assert value in str(caught.value)


def test_the_command(members: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(folder) for folder in members]
    assert main(["ensemble", *names[:2], "--as", "pair"]) == 0
    assert "pair: 2 models, 18 dimensions." in capsys.readouterr().out
    assert zoo.load("pair").dim == 18
    # By name, and only on request in place of an older ensemble of that name.
    assert main(["ensemble", "pair", names[2], "--as", "all", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["folder"], answer["card"]["dim"]) == ("all", str(paths.local_models() / "all"), 30)
    assert main(["ensemble", *names, "--as", "pair"]) == 2
    assert main(["ensemble", *names, "--as", "pair", "--replace"]) == 0
    assert zoo.load("pair").dim == 30


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["toy", "--as", "out"], "1"),
        (["toy", "tov", "--as", "out"], "'toy'"),
        (["toy", "toy", "--as", "Out"], "Out"),
        (["toy", "toy", "--as", "toy"], "toy"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], value: str) -> None:
    make_model(paths.local_models() / "toy")
    with pytest.raises(ZooError) as caught:
        run(["ensemble", *arguments])
    assert caught.value.exit_code == 2
    assert value in str(caught.value)


@pytest.mark.slow
def test_members_are_trained_once_and_joined(own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [np.full((16, 16, 3), 40 * i, np.uint8) for i in range(4)]
    data = dataclasses.replace(noise(), golden=images)
    monkeypatch.setattr(api.training_data, "prepare", lambda *_: data)
    members = tuple(recipe(name=f"pair.{seed}", seed=seed, schedule=Schedule(1, 1)) for seed in range(2))
    ensemble = EnsembleRecipe("pair", "pair", members)
    first = api.train(ensemble, progress=False, evaluate=False)
    assert first.epochs == 2
    joined = zoo.load("pair").embed(images)
    alone = np.concatenate([zoo.load(f"pair.{seed}").embed(images) for seed in range(2)], 1)
    np.testing.assert_allclose(joined, alone / np.linalg.norm(alone, axis=1, keepdims=True), atol=1e-6)
    assert api.train(ensemble, progress=False, evaluate=False).epochs == 0
    changed = dataclasses.replace(ensemble, members=(members[0], dataclasses.replace(members[1], seed=5)))
    assert api.train(changed, progress=False, evaluate=False).epochs == 1
