"""Stanford Online Products in its archive's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.raising import raises
from tests.zoo.data.written import write_images, write_lines
from zoo.data import load_dataset, retrieval_sets
from zoo.data.official import Counts
from zoo.errors import DatasetError

HEADER = "image_id class_id super_class_id path"
TRAIN = [
    "1 1 1 bicycle_final/111085122871_0.JPG",
    "2 1 1 bicycle_final/111085122871_1.JPG",
    "3 2 4 coffee_maker_final/111265328556_0.JPG",
]
TEST = ["4 11319 1 bicycle_final/251952414262_0.JPG", "5 11320 12 toaster_final/251952414262_1.JPG"]
EXPECTED = {"train": Counts(3, 2), "test": Counts(2, 2)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "Stanford_Online_Products"
    write_images(root, [line.split()[3] for line in TRAIN + TEST])
    write_lines(root / "Ebay_train.txt", HEADER, *TRAIN)
    write_lines(root / "Ebay_test.txt", HEADER, *TEST)
    return tmp_path


def test_the_split_is_the_authors_own(data: Path) -> None:
    train, test = (retrieval_sets.load_sop(split, data, EXPECTED) for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == ("sop", "train", ("bicycle/00001", "coffee_maker/00002"))
    assert train.labels.tolist() == [0, 0, 1]
    assert train.factors["super_class"].tolist() == [1, 1, 4]
    assert (test.classes, test.labels.tolist()) == (("bicycle/11319", "toaster/11320"), [0, 1])
    assert list(test.sources) == ["bicycle_final/251952414262_0.JPG", "toaster_final/251952414262_1.JPG"]
    assert list(test.images) == [data / "Stanford_Online_Products" / source for source in test.sources]
    assert test.labels.dtype == test.factors["super_class"].dtype == np.int64


def test_missing_files_are_named(data: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = data / "Stanford_Online_Products"
    with raises(DatasetError, "damaged-file", "2 images of 2 classes", "60,502 images of 11,316 classes"):
        load_dataset("sop", "test", data)
    (root / "toaster_final" / "251952414262_1.JPG").unlink()
    with raises(DatasetError, "missing-file", "1 of the 2", "Ebay_test.txt", "toaster_final/251952414262_1.JPG"):
        retrieval_sets.load_sop("test", data, EXPECTED)
    (root / "Ebay_test.txt").unlink()
    with raises(DatasetError, "missing-file", "Ebay_test.txt", "cvgl.stanford.edu"):
        retrieval_sets.load_sop("test", data, EXPECTED)
    assert len(retrieval_sets.load_sop("train", data, EXPECTED)) == 3
    with raises(DatasetError, "dataset-missing", "Stanford Online Products"):
        load_dataset("sop", data=tmp_path_factory.mktemp("empty"))


def test_broken_lines_and_names_outside_the_folder_are_refused(data: Path) -> None:
    path = data / "Stanford_Online_Products" / "Ebay_train.txt"
    write_lines(path, HEADER, TRAIN[0], "2 1 bicycle_final/111085122871_1.JPG", TRAIN[2])
    with raises(DatasetError, "damaged-file", "line 3", path, "'2 1 bicycle_final/"):
        retrieval_sets.load_sop("train", data, EXPECTED)
    write_lines(path, HEADER, *TRAIN[:2], "3 2 4 ../../secret.JPG")
    with raises(DatasetError, "unsafe-file", "../../secret.JPG"):
        retrieval_sets.load_sop("train", data, EXPECTED)
    write_lines(path, HEADER, *TRAIN[:2])
    with raises(DatasetError, "damaged-file", "2 images of 1 classes", "3 images of 2 classes"):
        retrieval_sets.load_sop("train", data, EXPECTED)
    write_lines(path)
    with raises(DatasetError, "damaged-file", "0 images of 0 classes"):
        retrieval_sets.load_sop("train", data, EXPECTED)
