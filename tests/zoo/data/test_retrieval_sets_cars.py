"""Cars196 in both of its official layouts, with real MAT files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from tests.raising import raises
from tests.zoo.data.written import write_images
from zoo.data import load_dataset, retrieval_sets
from zoo.data.official import Counts
from zoo.errors import DatasetError

CLASSES = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Volvo XC90 SUV 2007", "smart fortwo Convertible 2012"]
NUMBERS = [1, 1, 2, 3, 4, 4, 4]
EXPECTED = {"train": Counts(3, 2), "test": Counts(4, 2)}


def write_annotations(path: Path, field: str, names: Sequence[str], numbers: Sequence[Any], **more: Any) -> None:
    """A MAT file as published: a 1 x n struct array whose cells are 1 x 1 numbers and rows of characters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = np.empty((1, len(names)), dtype=[("bbox_x1", object), ("class", object), (field, object)])
    for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
        entries[0, i] = (np.array([[30]], np.uint16), np.array([[number]]), name)
    savemat(path, {"annotations": entries, **more})


def class_names(names: Sequence[str] = CLASSES) -> np.ndarray:
    cells = np.empty((1, len(names)), dtype=object)
    cells[0] = names
    return cells


def write_in_one(root: Path, numbers: Sequence[Any] = NUMBERS) -> Path:
    names = [f"car_ims/{i:06d}.jpg" for i in range(1, 8)]
    write_images(root, names)
    write_annotations(root / "cars_annos.mat", "relative_im_path", names, numbers, class_names=class_names())
    return root


def write_in_two(root: Path) -> Path:
    """Images 1, 3 and 4 are the authors' training images, the others their test images."""
    for folder, chosen, file in (
        ("cars_train", [0, 2, 3], "cars_train_annos.mat"),
        ("cars_test", [1, 4, 5, 6], "cars_test_annos_withlabels.mat"),
    ):
        names = [f"{i:05d}.jpg" for i in range(1, len(chosen) + 1)]
        write_images(root / folder, names)
        write_annotations(root / "devkit" / file, "fname", names, [NUMBERS[i] for i in chosen])
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": class_names()})
    return root


def test_one_folder_of_images(tmp_path: Path) -> None:
    write_in_one(tmp_path / "cars196")
    train, test = (retrieval_sets.load_cars(split, tmp_path, EXPECTED) for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == ("cars", "train", tuple(CLASSES[:2]))
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1], [0, 1, 1, 1])
    assert (test.classes, test.labels.dtype) == (tuple(CLASSES[2:]), np.int64)
    assert list(test.sources) == [f"car_ims/00000{i}.jpg" for i in (4, 5, 6, 7)]
    assert list(test.images) == [tmp_path / "cars196" / source for source in test.sources]


@pytest.mark.parametrize("late", ["devkit", "."])
def test_two_folders_of_images(tmp_path: Path, late: str) -> None:
    name = "cars_test_annos_withlabels.mat"
    root = write_in_two(tmp_path)
    (root / "devkit" / name).rename(root / late / name)
    train, test = (retrieval_sets.load_cars(split, tmp_path, EXPECTED) for split in ("train", "test"))
    assert list(train.sources) == ["cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg"]
    assert (train.classes, train.labels.tolist()) == (tuple(CLASSES[:2]), [0, 1, 0])
    assert list(test.sources) == ["cars_train/00003.jpg", *(f"cars_test/0000{i}.jpg" for i in (2, 3, 4))]
    assert (test.classes, test.labels.tolist()) == (tuple(CLASSES[2:]), [0, 1, 1, 1])


def test_missing_files_are_named(tmp_path: Path) -> None:
    with raises(DatasetError, "dataset-missing", "cars196", "ai.stanford.edu", "--data"):
        load_dataset("cars", data=tmp_path)
    root = write_in_one(tmp_path)
    with raises(DatasetError, "damaged-file", "0 images of 0 classes", "8,131 images of 98 classes"):
        load_dataset("cars", "test", tmp_path)
    (root / "car_ims" / "000006.jpg").unlink()
    with raises(DatasetError, "missing-file", "1 of the 4", "cars_annos.mat", "car_ims/000006.jpg"):
        retrieval_sets.load_cars("test", tmp_path, EXPECTED)
    (root / "cars_annos.mat").unlink()
    with raises(DatasetError, "missing-file", "cars_annos.mat"):
        retrieval_sets.load_cars("test", tmp_path, EXPECTED)


@pytest.mark.parametrize("name", ["cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_meta.mat"])
def test_a_missing_file_of_the_devkit_is_named(tmp_path: Path, name: str) -> None:
    root = write_in_two(tmp_path / "stanford_cars")
    (root / "devkit" / name).unlink()
    with raises(DatasetError, "missing-file", f"devkit/{name}"):
        retrieval_sets.load_cars("test", tmp_path, EXPECTED)


@pytest.mark.parametrize("trick", ["../../secret.jpg", "/etc/passwd", "car_ims/../../x.jpg"])
def test_names_outside_the_folder_are_refused(tmp_path: Path, trick: str) -> None:
    names = [trick, *(f"car_ims/{i}.jpg" for i in (2, 3))]
    write_annotations(tmp_path / "cars_annos.mat", "relative_im_path", names, [1, 1, 2], class_names=class_names())
    with raises(DatasetError, "unsafe-file", trick):
        retrieval_sets.load_cars("train", tmp_path, EXPECTED)
    names = [trick, "2.jpg", "3.jpg"]
    root = write_in_two(tmp_path / "stanford_cars")
    write_annotations(root / "devkit" / "cars_train_annos.mat", "fname", names, [1, 1, 2])
    with raises(DatasetError, "unsafe-file", trick):
        retrieval_sets.load_cars("train", tmp_path, EXPECTED)


@pytest.mark.parametrize(
    ("numbers", "code", "values"),
    [
        ([1, 1, 2, 3, 4, 4, 5], "damaged-file", ("cars_annos.mat", "class 5", "4 classes")),
        ([0, 1, 2, 3, 4, 4, 4], "damaged-file", ("cars_annos.mat", "class 0", "4 classes")),
        ([1, 1, 2, 2, 4, 4, 4], "damaged-file", ("3 images of 1 classes", "4 images of 2 classes")),
        ([1, 1, 2, 3, 4, 4, "x"], "unreadable-file", ("relative_im_path",)),
        ([1, 1, 2, 3, 4, 4, [2, 3]], "unreadable-file", ("relative_im_path",)),
    ],
)
def test_wrong_classes_are_refused(tmp_path: Path, numbers: list[Any], code: str, values: tuple[str, ...]) -> None:
    write_in_one(tmp_path, numbers)
    with raises(DatasetError, code, *values):
        retrieval_sets.load_cars("test", tmp_path, EXPECTED)


@pytest.mark.parametrize("content", ["", "no MAT file at all", "half", "other variable", "no struct"])
def test_a_damaged_mat_file_is_named(tmp_path: Path, content: str) -> None:
    path = write_in_one(tmp_path) / "cars_annos.mat"
    if content == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif content == "other variable":
        savemat(path, {"pictures": 1})
    elif content == "no struct":
        savemat(path, {"annotations": np.arange(7), "class_names": class_names()})
    else:
        path.write_text(content)
    with raises(DatasetError, "unreadable-file", path):
        retrieval_sets.load_cars("test", tmp_path, EXPECTED)
