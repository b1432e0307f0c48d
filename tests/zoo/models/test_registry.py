"""References to models: the name that finds a folder again, or its path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import zoo
from tests.zoo.hub_client import MODEL, World
from zoo.models.names import find_model
from zoo.models.registry import cached_folder, reference
from zoo.paths import SHIPPED


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(MODEL, folder))


def test_a_named_folder_is_referred_to_by_its_name(own_zoo: Path) -> None:
    folders = [SHIPPED / MODEL.name, copied(own_zoo / "models" / "mine"), copied(own_zoo / "baselines" / "timm--net")]
    for folder in folders:
        assert reference(folder) == folder.name
        assert find_model(folder.name) == cached_folder(folder.name) == folder


def test_a_folder_without_a_unique_name_is_referred_to_by_its_path(
    own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = copied(tmp_path / "work" / "mine")
    assert reference(elsewhere) == str(elsewhere.resolve())
    local = copied(own_zoo / "models" / "mine")
    monkeypatch.chdir(elsewhere.parent)  # where the path of that name comes first
    assert reference(local) == str(local.resolve())
    assert reference(Path("mine")) == str(elsewhere.resolve())
    copied(own_zoo / "models" / MODEL.name)
    assert reference(SHIPPED / MODEL.name) == str(SHIPPED / MODEL.name)


def test_a_model_of_the_hub_is_referred_to_by_its_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = zoo.load("org/toy", runtime="onnx").folder
    name = reference(folder)
    assert name == f"org/toy@{world.hub.repositories['org/toy'].branches['main']}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_model(name) == cached_folder(name) == folder
