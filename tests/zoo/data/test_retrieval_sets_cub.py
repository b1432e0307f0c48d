"""CUB-200-2011 in its archive's layout, and the errors of any listed data set for a damaged copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.raising import raises
from tests.zoo.data.written import write_images, write_lines
from zoo.data import load_dataset, retrieval_sets
from zoo.data.images import open_image
from zoo.data.official import Counts
from zoo.errors import DatasetError

NAMES = [
    "001.Albatross/A_0046_18.jpg",
    "001.Albatross/A_0009_34.jpg",
    "002.Wren/W_0002_55.jpg",
    "003.Owl/O_0074_59.jpg",
    "003.Owl/O_0001_01.jpg",
    "004.Tern/T_0001_02.jpg",
]
LABELS = [1, 1, 2, 3, 3, 4]
EXPECTED = {"train": Counts(3, 2), "test": Counts(3, 2)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that holds CUB_200_2011 with six images of four classes."""
    root = tmp_path / "CUB_200_2011"
    write_images(root / "images", NAMES)
    write_lines(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(NAMES, 1)))
    write_lines(root / "image_class_labels.txt", *(f"{i} {label}" for i, label in enumerate(LABELS, 1)))
    return tmp_path


def refused(data: Path, code: str, *values: object, split: str = "train") -> None:
    """Assert that loading fails with this code and a message that holds these values."""
    with raises(DatasetError, code, *values):
        retrieval_sets.load_cub(split, data, EXPECTED)


def test_the_first_half_of_the_classes_trains(data: Path) -> None:
    root = data / "CUB_200_2011"
    train, test = (retrieval_sets.load_cub(split, data, EXPECTED) for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == ("cub", "train", ("001.Albatross", "002.Wren"))
    assert (test.name, test.split, test.classes) == ("cub", "test", ("003.Owl", "004.Tern"))
    assert (list(train.sources), list(test.sources)) == (NAMES[:3], NAMES[3:])
    assert list(train.images) == [root / "images" / name for name in NAMES[:3]]
    assert train.labels.tolist() == [0, 0, 1]
    assert test.labels.tolist() == [0, 0, 1]
    assert train.labels.dtype == np.int64
    assert [open_image(image).size for image in test.images] == [(6, 4)] * 3


def test_lists_may_be_in_any_order_with_empty_lines_and_carriage_returns(data: Path) -> None:
    root = data / "CUB_200_2011"
    lines = (root / "image_class_labels.txt").read_text().splitlines()
    (root / "image_class_labels.txt").write_text("\r\n".join([*reversed(lines), "", ""]), newline="")
    assert retrieval_sets.load_cub("train", data, EXPECTED).labels.tolist() == [0, 0, 1]


def test_its_own_folder_may_be_named_and_so_may_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(retrieval_sets.load_cub("test", data / "CUB_200_2011", EXPECTED)) == 3
    renamed = (data / "CUB_200_2011").rename(data / "birds")
    assert len(retrieval_sets.load_cub("test", renamed, EXPECTED)) == 3
    renamed.rename(data / "CUB_200_2011")
    monkeypatch.setenv("ZOO_DATA", str(data))
    assert len(retrieval_sets.load_cub("test", expected=EXPECTED)) == 3


def test_a_missing_data_set_names_its_page_and_the_folders(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    with raises(DatasetError, "dataset-missing") as error:
        load_dataset("cub")
    for part in (str(tmp_path), str(own_zoo), "CUB_200_2011", "www.vision.caltech.edu", "--data", "ZOO_DATA"):
        assert part in str(error.value)
    with raises(DatasetError, "dataset-missing", "CUB_200_2011"):
        load_dataset("cub", data=tmp_path)


def test_the_published_counts_are_the_default(data: Path) -> None:
    with raises(DatasetError, "damaged-file", "0 images of 0 classes", "5,924 images of 100 classes"):
        load_dataset("cub", "test", data)
    assert sum(counts.images for counts in retrieval_sets.CUB_EXPECTED.values()) == 11_788


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt"])
def test_a_missing_list_is_named(data: Path, name: str) -> None:
    (data / "CUB_200_2011" / name).unlink()
    page = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    refused(data, "missing-file", data / "CUB_200_2011" / name, page)
    refused(data / "CUB_200_2011", "missing-file", name)


def test_missing_files_are_counted_and_the_first_of_them_named(data: Path) -> None:
    images = data / "CUB_200_2011" / "images"
    (images / NAMES[1]).unlink()
    refused(data, "missing-file", images, "1 of the 3", NAMES[1])
    assert len(retrieval_sets.load_cub("test", data, EXPECTED)) == 3  # the other split is whole
    shutil.rmtree(images / "001.Albatross")
    refused(data, "missing-file", "2 of the 3", images.parent / "images.txt", f"{NAMES[0]}, {NAMES[1]}")
    shutil.rmtree(images)
    refused(data, "missing-file", "3 of the 3", ", ".join(NAMES[:3]))


def test_folders_and_broken_links_count_as_missing(data: Path) -> None:
    images = data / "CUB_200_2011" / "images"
    (images / NAMES[0]).unlink()
    (images / NAMES[0]).mkdir()
    (images / NAMES[1]).unlink()
    (images / NAMES[1]).symlink_to("nowhere.jpg")
    shutil.rmtree(images / "002.Wren")
    (images / "002.Wren").write_bytes(b"")
    refused(data, "missing-file", "3 of the 3", ", ".join(NAMES[:3]))


def test_a_long_list_of_missing_files_is_cut(tmp_path: Path) -> None:
    root = tmp_path / "CUB_200_2011"
    write_lines(root / "images.txt", *(f"{i} 001.Albatross/{i}.jpg" for i in range(50)))
    write_lines(root / "image_class_labels.txt", *(f"{i} 1" for i in range(50)))
    with raises(DatasetError, "missing-file", "50 of the 50", ", ".join(f"001.Albatross/{i}.jpg" for i in range(3))):
        retrieval_sets.load_cub("train", tmp_path, {"train": Counts(50, 1)})


def test_lists_that_were_cut_off_are_noticed(data: Path) -> None:
    root = data / "CUB_200_2011"
    write_lines(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(NAMES[:5], 1)))
    refused(data, "damaged-file", "images.txt", "image_class_labels.txt")
    write_lines(root / "image_class_labels.txt", *(f"{i} {label}" for i, label in enumerate(LABELS[:5], 1)))
    assert len(retrieval_sets.load_cub("train", data, EXPECTED)) == 3
    refused(data, "damaged-file", "2 images of 1 classes for test", "3 images of 2 classes", split="test")


def test_surplus_images_are_noticed(data: Path) -> None:
    with (data / "CUB_200_2011" / "images.txt").open("a") as file:
        file.write("7 005.Jay/J.jpg\n")
    with (data / "CUB_200_2011" / "image_class_labels.txt").open("a") as file:
        file.write("7 5\n")
    refused(data, "damaged-file", "4 images of 3 classes for test", "3 images of 2 classes", split="test")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("one 001.Albatross/A.jpg", "'one 001.Albatross/A.jpg'"),
        ("1", "'1'"),
        ("1 001.Albatross/A.jpg 3", "'1 001.Albatross/A.jpg 3'"),
        ("x" * 500, f"'{'x' * 80}'"),
    ],
)
def test_a_broken_line_is_named_by_its_number(data: Path, line: str, shown: str) -> None:
    path = data / "CUB_200_2011" / "images.txt"
    path.write_text(path.read_text() + f"\n{line}\n")
    refused(data, "damaged-file", "line 8", path, shown)


@pytest.mark.parametrize(
    "trick",
    ["../../secret.jpg", "/etc/passwd", "001.Albatross/../../x.jpg", "./a.jpg", "a//b.jpg", "a/", "..", "a\0b/c"],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_names_outside_the_folder_are_refused(data: Path, trick: str, split: str) -> None:
    (data.parent / "secret.jpg").touch()
    root = data / "CUB_200_2011"
    lines = [trick if name in (NAMES[2], NAMES[5]) else name for name in NAMES]
    write_lines(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(lines, 1)))
    refused(data, "unsafe-file", repr(trick), root / "images", split=split)


def test_a_name_listed_twice_is_refused(data: Path) -> None:
    root = data / "CUB_200_2011"
    lines = [NAMES[0] if name == NAMES[1] else name for name in NAMES]
    write_lines(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(lines, 1)))
    refused(data, "invalid-table", NAMES[0])


def test_a_class_in_two_folders_is_refused(data: Path) -> None:
    write_lines(data / "CUB_200_2011" / "image_class_labels.txt", *(f"{i} {1 + i // 4}" for i in range(1, 7)))
    refused(data, "damaged-file", "class 1", "001.Albatross", "002.Wren")


def test_lists_that_are_not_text_are_refused(data: Path) -> None:
    path = data / "CUB_200_2011" / "images.txt"
    path.write_bytes(b"\xff\xfe1 a.jpg")
    refused(data, "unreadable-file", path)
    path.unlink()
    path.mkdir()
    refused(data, "unreadable-file", path, "Is a directory")


def test_a_name_that_is_too_long_is_refused(data: Path) -> None:
    root = data / "CUB_200_2011"
    lines = [f"{'a' * 300}/x.jpg" if name == NAMES[2] else name for name in NAMES]
    write_lines(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(lines, 1)))
    refused(data, "unreadable-file", "File name too long")
