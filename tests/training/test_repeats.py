"""A training is repeated with the recorded weights and images only: others of the same name are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.raising import raises
from tests.training.studies import toys
from training.named import train_seeds
from zoo.cli.main import main
from zoo.errors import TrainingError, UsageError
from zoo.models.card import read_card

RECIPE = "margin-conv4-glyphs"
SETTINGS = [*toys.SETTINGS, "schedule.epochs=1", "data.validation=0"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return toys.images(tmp_path / "pictures")


def train(name: str, pictures: Path, *settings: str, **options: Any) -> None:
    zoo.train(RECIPE, pictures, settings=[*SETTINGS, *settings], name=name, **options)


def put_other_images(folder: Path) -> None:
    """Replace the first image of each class by one of another size."""
    for image in folder.glob("*/0.png"):
        Image.fromarray(np.random.default_rng(1).integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(image)


def fingerprint_of(name: str, home: Path) -> str:
    return read_card(home / "models" / name).fingerprint


def reproducible(name: str) -> bool:
    """Return whether `zoo verify` finds nothing that prevents a reproduction."""
    checks = list(zoo.verify(name, quick=True))
    assert not any(check.fails for check in checks)
    return "reproduction" not in {check.name for check in checks}


def test_a_model_is_not_reproduced_from_another_model_of_the_recorded_name(own_zoo: Path, pictures: Path) -> None:
    """The fault: a recipe names the model that it starts from, and the name may mean another one today."""
    train("start", pictures)
    train("made", pictures, "backbone.pretrained=start")
    assert zoo.reproduce("made", pictures).same_weights
    assert reproducible("made")
    train("start", pictures, seed=1, replace=True)
    assert not reproducible("made")
    with raises(UsageError, "other-model"):
        zoo.reproduce("made", pictures, name="again")
    shutil.rmtree(own_zoo / "models" / "start")
    with raises(UsageError, "other-model"):
        zoo.reproduce("made", pictures, name="again")


def test_a_model_is_not_reproduced_on_other_images(own_zoo: Path, pictures: Path) -> None:
    train("made", pictures)
    put_other_images(pictures / "test")
    with raises(TrainingError, "other-images"):
        zoo.reproduce("made", pictures)
    put_other_images(pictures / "train")
    with raises(UsageError, "other-images"):
        zoo.reproduce("made", pictures, name="again")


def test_a_seed_is_kept_only_if_its_weights_and_images_are_the_same(
    own_zoo: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault: of several seeds, those of a recipe that were trained on other images counted as trained already."""
    train("start", pictures)
    settings = [*SETTINGS, "backbone.pretrained=start"]

    def seeds() -> str:
        capsys.readouterr()
        train_seeds(RECIPE, 2, data=pictures, settings=settings, name="made", evaluate=False)
        return capsys.readouterr().err

    seeds()
    assert seeds().count("is kept") == 2
    put_other_images(pictures / "train")
    with raises(UsageError, "already-exists"):
        seeds()
    shutil.rmtree(own_zoo / "models" / "made")
    shutil.rmtree(own_zoo / "models" / "made-seed1")
    seeds()
    train("start", pictures, seed=1, replace=True)
    with raises(UsageError, "already-exists"):
        seeds()


def test_heads_on_features_of_other_images_are_not_kept(own_zoo: Path, pictures: Path, tmp_path: Path) -> None:
    train("trunk", pictures)
    settings = ["schedule.epochs=1", "schedule.steps=2", "batch.size=8", "batch.per_class=2", "data.validation=0"]

    def heads(images: Path) -> None:
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        assert main(["features", "trunk", str(images), "-o", str(tmp_path / "kept"), "--quiet"]) == 0
        train_seeds(RECIPE, 2, features=tmp_path / "kept", settings=settings, name="heads", evaluate=False)

    heads(pictures / "train")
    heads(pictures / "train")
    shutil.rmtree(pictures / "train" / "class0")
    with raises(UsageError, "already-exists"):
        heads(pictures / "train")


LOSS = """
from torch import nn

class Pull(nn.Module):
    def forward(self, embeddings, labels, indices_tuple=None):
        same = labels[:, None] == labels
        return FACTOR * (embeddings @ embeddings.T)[~same].exp().mean()
"""


def test_a_class_of_the_user_that_was_edited_is_another_one(
    own_zoo: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: a recipe names the user's class, and its source may be another one today."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pulls.py").write_text(LOSS.replace("FACTOR", "2"))
    own = {"recipe": RECIPE, "loss": "pulls:Pull", "miner": "none"}
    study: dict[str, Any] = {"settings": toys.SETTINGS, "data": pictures, "out": tmp_path / "study"}
    train("made", pictures, loss="pulls:Pull", miner="none")
    zoo.study({"margin": RECIPE, "mine": own}, seeds=1, **study)
    zoo.study({"margin": RECIPE, "mine": own}, seeds=1, **study)
    assert zoo.reproduce("made", pictures).same_weights
    (tmp_path / "pulls.py").write_text(LOSS.replace("FACTOR", "0.5"))
    with raises(TrainingError, "other-study"):
        zoo.study({"margin": RECIPE, "mine": own}, seeds=2, **study)
    with raises(UsageError, "other-definition"):
        zoo.reproduce("made", pictures, name="again")


def test_an_interrupted_run_does_not_continue_from_another_start(
    own_zoo: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("start", pictures)
    settings = ("backbone.pretrained=start", "schedule.epochs=2")
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr("training.api.write_model_folder", _interrupt)
        train("made", pictures, *settings)
    train("start", pictures, seed=1, replace=True)
    train("made", pictures, *settings)
    train("afresh", pictures, *settings)
    assert fingerprint_of("made", own_zoo) == fingerprint_of("afresh", own_zoo)


def _interrupt(*args: object) -> None:
    raise KeyboardInterrupt
