"""Cached features of a folder of images: extracted once, again for other labels, and deleted in time."""

from __future__ import annotations

import csv
import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from tests.training.cached.pictures import make_model, write_pictures
from training.cached.feature_folder import TrunkModel, Views
from training.finetune import KEPT_FEATURES, cached_features
from training.recipe import Augmentation
from zoo.data.folder import read_training_folder
from zoo.models.card import read_card

VIEWS = Views(1, Augmentation(), 20)


@pytest.fixture
def model(own_zoo: Path) -> TrunkModel:
    folder = own_zoo / "models" / "toy"
    make_model(folder)
    return TrunkModel(folder, read_card(folder), "toy")


def table(path: Path, root: Path, swapped: bool = False) -> Path:
    """Write a CSV file of the images; swapped: two of them have each other's labels."""
    rows = [[str(image), image.parent.name] for image in sorted(root.rglob("*.png"))]
    if swapped:
        rows[0][1], rows[-1][1] = rows[-1][1], rows[0][1]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["image", "label"], *rows])
    return path


def test_swapped_labels_and_renamed_classes_are_learnt(model: TrunkModel, tmp_path: Path) -> None:
    root = write_pictures(tmp_path / "pictures", classes=4, each=2)
    first = read_training_folder(table(tmp_path / "t.csv", root)).dataset
    swapped = read_training_folder(table(tmp_path / "t.csv", root, swapped=True)).dataset
    assert first.images == swapped.images  # nothing but the labels tells the two apart
    before, after = (cached_features(model, dataset, VIEWS, "cpu") for dataset in (first, swapped))
    np.testing.assert_array_equal(before.labels, first.labels)
    np.testing.assert_array_equal(after.labels, swapped.labels)
    renamed = dataclasses.replace(first, classes=tuple(f"kind {k}" for k in range(4)))
    assert cached_features(model, renamed, VIEWS, "cpu").classes == renamed.classes


def test_features_are_extracted_once_and_old_folders_are_deleted(model: TrunkModel, tmp_path: Path) -> None:
    dataset = read_training_folder(write_pictures(tmp_path, classes=4, each=2)).dataset
    first = cached_features(model, dataset, VIEWS, "cpu").path
    made = first.stat().st_ino
    others = [first.with_name(f"features-{i}") for i in range(KEPT_FEATURES + 2)]
    for age, other in enumerate(others, start=1):
        other.mkdir()
        (other / "plain.npy").touch()
        os.utime(other, (10**9 - age, 10**9 - age))
    (first.parent / "decoded").mkdir()
    os.utime(first, (1, 1))
    again = cached_features(model, dataset, VIEWS, "cpu").path
    assert (again, again.stat().st_ino) == (first, made)
    assert {path.name for path in first.parent.iterdir()} == {
        first.name,
        "decoded",
        *(other.name for other in others[: KEPT_FEATURES - 1]),
    }


@pytest.mark.parametrize("name", ["plain.npy", "record.json"])
def test_damaged_features_are_made_again(name: str, model: TrunkModel, tmp_path: Path) -> None:
    dataset = read_training_folder(write_pictures(tmp_path, classes=4, each=2)).dataset
    first = cached_features(model, dataset, VIEWS, "cpu")
    plain, whole = np.array(first.plain), (first.path / name).read_bytes()
    (first.path / name).write_bytes(whole[: len(whole) // 2])
    np.testing.assert_array_equal(cached_features(model, dataset, VIEWS, "cpu").plain, plain)
