"""CIFAR-100 from the real zip file, where it is at hand, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from zoo.datasets import cifar100, load
from zoo.datasets.published import Counts
from zoo.errors import DatasetError
from zoo.files import sha256_of
from zoo.images import open_image

EXPECTED = {"train": Counts(4, 2), "test": Counts(2, 1)}


@pytest.fixture(scope="module")
def cifar_root(data_root: Path) -> Path:
    if not (data_root / cifar100.FILE).is_file():
        pytest.skip(f"{cifar100.FILE} is not in {data_root}")
    return data_root


def write_zip(folder: Path, *names: str) -> str:
    with ZipFile(folder / cifar100.FILE, "w") as archive:
        for name in names:
            archive.writestr(name, name.encode())
    return sha256_of(folder / cifar100.FILE)


def test_the_halves_are_of_different_classes(cifar_root: Path) -> None:
    train, test = (load("cifar100", split, cifar_root) for split in ("train", "test"))
    assert list(train.classes + test.classes) == sorted({*train.classes, *test.classes})
    assert (train.classes[0], train.classes[-1]) == ("apple", "mountain")
    assert (test.classes[0], test.classes[-1]) == ("mouse", "worm")
    for half in (train, test):
        assert len(half.classes) == 50
        assert np.bincount(half.labels).tolist() == [500] * 50
        assert half.labels.dtype == np.int64
        assert list(half.sources) == sorted(set(half.sources))
        for i in range(0, len(half), 997):
            assert half.sources[i].startswith(f"{half.classes[half.labels[i]]}/")
            picture = open_image(half.images[i])
            assert (picture.mode, picture.size) == ("RGB", (32, 32))


def test_classes_are_split_in_alphabetical_order(tmp_path: Path) -> None:
    names = ["cat/2.png", "apple/9.png", "cat/1.png", "bee/3.png", "apple/10.png", "bee/1.png"]
    digest = write_zip(tmp_path, "bee/", *names, "README.txt", "a/b/c.png", "stray.png")
    train, test = (cifar100.load(split, tmp_path, EXPECTED, digest) for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == ("cifar100", "train", ("apple", "bee"))
    assert list(train.sources) == ["apple/10.png", "apple/9.png", "bee/1.png", "bee/3.png"]
    assert list(train.images) == [source.encode() for source in train.sources]
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert (test.classes, list(test.sources)) == (("cat",), ["cat/1.png", "cat/2.png"])


def test_other_counts_are_refused(tmp_path: Path) -> None:
    digest = write_zip(tmp_path, "a/1.png", "a/2.png", "b/1.png", "c/1.png", "c/2.png")
    with pytest.raises(DatasetError, match="holds 3 images of 2 classes for train; expected 4 images of 2 classes"):
        cifar100.load("train", tmp_path, EXPECTED, digest)
    with pytest.raises(
        DatasetError, match="holds 0 images of 0 classes for test; expected 25,000 images of 50 classes"
    ):
        cifar100.load("test", tmp_path, sha256=digest)


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    digest = write_zip(tmp_path, "a/1.png")
    with pytest.raises(DatasetError, match=rf"its sha256 is {digest}, expected 9eac335d"):
        load("cifar100", "test", tmp_path)
    (tmp_path / cifar100.FILE).write_bytes(b"not a zip")
    with pytest.raises(DatasetError, match="cannot be read: File is not a zip file"):
        cifar100.load("test", tmp_path, sha256=sha256_of(tmp_path / cifar100.FILE))


def test_where_it_is_nowhere_it_says_what_it_is_and_where_to_put_it(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    with pytest.raises(DatasetError) as error:
        load("cifar100")
    for part in (str(tmp_path), str(own_zoo), cifar100.FILE, "50,000", "<class>/<file>.png", "--data", "ZOO_DATA"):
        assert part in str(error.value)
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize("name", ["cifar-100-python.tar.gz", "cifar-100-python"])
def test_the_official_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=rf"{name} is a pickle, which could run any code and isn't opened\."):
        load("cifar100", data=tmp_path)
