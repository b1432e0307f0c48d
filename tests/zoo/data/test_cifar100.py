"""CIFAR-100 from the real zip file, if it is available, and from small files in both layouts."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from tests.raising import raises
from zoo.data import cifar100, load_dataset
from zoo.data.images import open_image
from zoo.data.official import Counts
from zoo.errors import DatasetError
from zoo.files import sha256_of

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


@pytest.mark.slow
def test_the_halves_are_of_different_classes(cifar_root: Path) -> None:
    train, test = (load_dataset("cifar100", split, cifar_root) for split in ("train", "test"))
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
    with raises(DatasetError, "damaged-file", "3 images of 2 classes", "4 images of 2 classes", "train") as error:
        cifar100.load("train", tmp_path, EXPECTED, digest)
    assert all(part in str(error.value) for part in (cifar100.URL, str(tmp_path)))
    with raises(DatasetError, "damaged-file", "0 images of 0 classes", "25,000 images of 50 classes", "test"):
        cifar100.load("test", tmp_path, sha256=digest)


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    digest = write_zip(tmp_path, "a/1.png")
    with raises(DatasetError, "hash-mismatch", digest, "9eac335d") as error:
        load_dataset("cifar100", "test", tmp_path)
    assert all(part in str(error.value) for part in (cifar100.URL, str(tmp_path)))
    (tmp_path / cifar100.FILE).write_bytes(b"not a zip")
    with raises(DatasetError, "unreadable-file") as error:
        cifar100.load("test", tmp_path, sha256=sha256_of(tmp_path / cifar100.FILE))
    assert all(part in str(error.value) for part in (cifar100.URL, str(tmp_path)))


def write_archive(folder: Path, labels: list[int], names: str, cut: int = 0) -> tuple[Path, np.ndarray]:
    """The authors' layout: red, green and blue planes after a coarse and a fine label; the archive and its pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 32, 32, 3), np.uint8)
    records = bytearray()
    for image, label in zip(pixels, labels, strict=True):
        records += bytes([99, label])
        for plane in range(3):
            for row in range(32):
                records += bytes(image[row, :, plane].tolist())
    inside = folder / cifar100.FOLDER
    inside.mkdir()
    (inside / "train.bin").write_bytes(bytes(records)[: len(records) - cut])
    (inside / "fine_label_names.txt").write_text(names)
    with tarfile.open(folder / cifar100.ARCHIVE, "w:gz") as archive:
        archive.add(inside, cifar100.FOLDER)
    return folder / cifar100.ARCHIVE, pixels


@pytest.mark.parametrize("packed", [True, False])
def test_the_official_archive_is_read_packed_or_extracted(tmp_path: Path, packed: bool) -> None:
    archive, pixels = write_archive(tmp_path, [2, 0, 1, 2, 0, 1], "apple\nbee\ncat\n\n")
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    if packed:
        shutil.rmtree(tmp_path / cifar100.FOLDER)
    else:
        archive.unlink()
    train, test = (cifar100.load(split, tmp_path, EXPECTED, md5=digest) for split in ("train", "test"))
    assert (train.classes, train.labels.tolist()) == (("apple", "bee"), [0, 0, 1, 1])
    assert list(train.sources) == ["apple/00001", "apple/00004", "bee/00002", "bee/00005"]
    assert (test.classes, list(test.sources)) == (("cat",), ["cat/00000", "cat/00003"])
    for split, rows in ((train, [1, 4, 2, 5]), (test, [0, 3])):
        for image, row in zip(split.images, rows, strict=True):
            assert np.array_equal(image, pixels[row])
            assert np.array_equal(np.asarray(open_image(image)), pixels[row])


def test_a_damaged_official_archive_is_refused(tmp_path: Path) -> None:
    def refused(code: str, *values: str, md5: str = cifar100.MD5) -> None:
        with raises(DatasetError, code, *values, cifar100.URL):
            cifar100.load("train", tmp_path, EXPECTED, md5=md5)

    archive, _ = write_archive(tmp_path, [0, 3], "apple\nbee\n", cut=5)
    inside = tmp_path / cifar100.FOLDER
    refused("damaged-file", "train.bin", "6,143", "3,074")
    with (inside / "train.bin").open("ab") as file:
        file.write(bytes(5))
    refused("damaged-file", "train.bin", "class 3", "2 classes")
    (inside / "fine_label_names.txt").unlink()
    refused("missing-file", "fine_label_names.txt")
    shutil.rmtree(inside)
    refused("hash-mismatch", hashlib.md5(archive.read_bytes()).hexdigest(), cifar100.MD5)
    archive.write_bytes(archive.read_bytes()[:40])
    refused("unreadable-file", md5=hashlib.md5(archive.read_bytes()).hexdigest())
    with tarfile.open(archive, "w:gz"):
        pass
    refused("missing-file", "train.bin", md5=hashlib.md5(archive.read_bytes()).hexdigest())


def test_the_zip_and_the_official_archive_hold_the_same_counts(tmp_path: Path) -> None:
    write_archive(tmp_path, [0, 1], "apple\nbee\n")
    with raises(DatasetError, "damaged-file", "2 images of 2 classes", "25,000 images of 50 classes", "train") as error:
        load_dataset("cifar100", "train", tmp_path)
    assert all(part in str(error.value) for part in (cifar100.ARCHIVE, cifar100.URL))


def test_a_missing_data_set_names_its_page_and_the_folders(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    with raises(DatasetError, "dataset-missing") as error:
        load_dataset("cifar100")
    for part in (str(tmp_path), str(own_zoo), cifar100.FILE, "50,000", "<class>/<file>.png", "--data", "ZOO_DATA"):
        assert part in str(error.value)
    for part in (cifar100.URL, "packed or extracted", "its page gives no licence"):
        assert part in str(error.value)
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize("name", ["cifar-100-python.tar.gz", "cifar-100-python"])
def test_the_official_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with raises(DatasetError, "dataset-missing", tmp_path / name, "pickle"):
        load_dataset("cifar100", data=tmp_path)
