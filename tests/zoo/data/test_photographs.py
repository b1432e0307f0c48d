"""CUB-200 of 2010 and half of Cars196: small packs, the birds in their authors' layout, and the real packs."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from tests.raising import raises
from tests.zoo.data.written import write_images, write_lines
from zoo.data import load_dataset, photographs
from zoo.data.dataset import Dataset
from zoo.data.images import open_image
from zoo.data.official import Counts
from zoo.data.photographs import CARS_HALF_PACK, CUB2010_PACK, Pack, contents_sha256
from zoo.errors import DatasetError
from zoo.files import sha256_of

NAMES = [
    "001.Owl/O_1.jpg",
    "001.Owl/O_2.jpg",
    "002.Wren/W_9.jpg",
    "003.Tern/T_1.jpg",
    "004.Jay/J_1.jpg",
    "004.Jay/J_3.jpg",
]
EXPECTED = {"train": Counts(3, 2), "test": Counts(3, 2)}


@dataclasses.dataclass(frozen=True)
class SmallPack:
    """A pack of six images of four classes: its description, and the folder of images that it was made of."""

    pack: Pack
    images: Path

    def load(self, split: str, data: Path) -> Dataset:
        loader = photographs.load_cub2010 if self.pack.name == "cub2010" else photographs.load_cars_half
        return loader(split, data, EXPECTED, self.pack)

    def refused(self, data: Path, code: str, *values: object, split: str = "train") -> None:
        with raises(DatasetError, code, *values):
            self.load(split, data)


@pytest.fixture(params=[CUB2010_PACK, CARS_HALF_PACK], ids=lambda pack: pack.name)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> SmallPack:
    """A zip file in the folder `data`, and its images in the folder `images`."""
    images, file = tmp_path / "images", tmp_path / "data" / request.param.file
    write_images(images, NAMES)
    file.parent.mkdir()
    with ZipFile(file, "w") as archive:
        for name in [*reversed(NAMES)]:
            archive.write(images / name, name)
        for name in ("README.txt", "001.Owl/notes.txt", "stray.jpg", "__MACOSX/001.Owl/._O_1.jpg", "001.Owl/._O_1.jpg"):
            archive.writestr(name, b"-")
    digests = {
        split: contents_sha256((images / name).read_bytes() for name in names)
        for split, names in (("train", NAMES[:3]), ("test", NAMES[3:]))
    }
    pack = dataclasses.replace(request.param, sha256=sha256_of(file), contents=digests)
    return SmallPack(pack, images)


def test_the_first_half_of_the_classes_trains(small: SmallPack, tmp_path: Path) -> None:
    train, test = (small.load(split, tmp_path / "data") for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == (small.pack.name, "train", ("001.Owl", "002.Wren"))
    assert (test.name, test.split, test.classes) == (small.pack.name, "test", ("003.Tern", "004.Jay"))
    assert (list(train.sources), list(test.sources)) == (NAMES[:3], NAMES[3:])
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1], [0, 1, 1])
    assert list(test.images) == [(small.images / name).read_bytes() for name in NAMES[3:]]


def test_an_extracted_pack_is_the_same_images(
    small: SmallPack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = small.load("test", tmp_path / "data")
    for data in (small.images, small.images.parent / "else"):
        if data != small.images:
            shutil.copytree(small.images, data / small.pack.file.removesuffix(".zip"))
        extracted = small.load("test", data)
        assert extracted.identity == packed.identity
        assert list(extracted.images) == list(packed.images)
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "data"))
    loader = photographs.load_cub2010 if small.pack.name == "cub2010" else photographs.load_cars_half
    assert loader("test", expected=EXPECTED, pack=small.pack).identity == packed.identity


def test_another_zip_file_of_that_name_is_refused(small: SmallPack, tmp_path: Path) -> None:
    file = tmp_path / "data" / small.pack.file
    with raises(DatasetError, "hash-mismatch", file, sha256_of(file), small.pack.sha256):
        photographs._read_pack(dataclasses.replace(small.pack, sha256=small.pack.sha256[::-1]), file, "test", EXPECTED)
    file.write_bytes(b"not a zip")
    small.refused(tmp_path / "data", "hash-mismatch", small.pack.sha256)
    broken = dataclasses.replace(small.pack, sha256=sha256_of(file))
    dataclasses.replace(small, pack=broken).refused(tmp_path / "data", "unreadable-file", file)


def test_a_missing_pack_is_named_with_its_hash(small: SmallPack, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    small.refused(tmp_path / "none", "dataset-missing", tmp_path / "none", small.pack.file, "--data", "ZOO_DATA")


def test_a_missing_class_is_named(small: SmallPack) -> None:
    shutil.rmtree(small.images / "002.Wren")
    small.refused(small.images, "missing-file", small.images, "002", "001 to 002")
    assert len(small.load("test", small.images)) == 3  # the other split is whole
    shutil.rmtree(small.images / "003.Tern")
    small.refused(small.images, "missing-file", "003", "003 to 004", split="test")


def test_other_counts_are_refused(small: SmallPack) -> None:
    write_images(small.images, ["002.Wren/W_10.jpg"])
    small.refused(small.images, "damaged-file", "4 images of 2 classes", "3 images of 2 classes")
    (small.images / "002.Wren" / "W_10.jpg").unlink()
    (small.images / NAMES[0]).unlink()
    small.refused(small.images, "damaged-file", "2 images of 2 classes", small.pack.file)


def test_a_damaged_image_is_named(small: SmallPack) -> None:
    path = small.images / NAMES[1]
    path.write_bytes(path.read_bytes()[:200])
    small.refused(small.images, "hash-mismatch", NAMES[1], "train")


def test_another_image_is_refused(small: SmallPack) -> None:
    shutil.copy(small.images / NAMES[0], small.images / NAMES[1])
    small.refused(small.images, "hash-mismatch", small.pack.contents["train"])


@pytest.fixture
def authors(tmp_path: Path) -> Path:
    """The authors' layout: images and lists, whose split is within classes."""
    write_images(tmp_path / "CUB_200_2010" / "images", NAMES)
    (tmp_path / "CUB_200_2010" / "images" / "001.Owl" / "._O_1.jpg").write_bytes(b"-")
    write_lines(tmp_path / "CUB_200_2010" / "lists" / "train.txt", *NAMES[::2])
    write_lines(tmp_path / "CUB_200_2010" / "lists" / "test.txt", *NAMES[1::2])
    return tmp_path


def load_authors(split: str, data: Path) -> Dataset:
    return photographs.load_cub2010(split, data, EXPECTED)


def test_the_authors_layout_is_split_by_class(authors: Path) -> None:
    root = authors / "CUB_200_2010"
    for data in (authors, root):
        train, test = (load_authors(split, data) for split in ("train", "test"))
        assert (train.name, train.classes, test.classes) == (
            "cub2010",
            ("001.Owl", "002.Wren"),
            ("003.Tern", "004.Jay"),
        )
        assert list(test.images) == [root / "images" / name for name in NAMES[3:]]
        assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1], [0, 1, 1])


def test_whole_photographs_and_crops_of_them_have_different_identities(authors: Path) -> None:
    """The names of the files are the same, and the tables compare by identity alone."""
    images = [(authors / "CUB_200_2010" / "images" / name).read_bytes() for name in NAMES[3:]]
    pack = dataclasses.replace(CUB2010_PACK, contents={"test": contents_sha256(images)})
    crops = photographs.load_cub2010("test", authors / "CUB_200_2010" / "images", EXPECTED, pack)
    whole = load_authors("test", authors)
    assert (crops.name, crops.classes, len(crops)) == (whole.name, whole.classes, len(whole))
    assert crops.identity.sha256 != whole.identity.sha256


def test_a_damaged_copy_of_the_authors_files_is_refused(authors: Path) -> None:
    root = authors / "CUB_200_2010"
    with raises(DatasetError, "damaged-file", "0 images of 0 classes", "3,043 images of 100 classes"):
        load_dataset("cub2010", "test", authors)
    (root / "images" / NAMES[4]).unlink()
    with raises(DatasetError, "missing-file", NAMES[4]):
        load_authors("test", authors)
    write_lines(root / "lists" / "test.txt", NAMES[0], NAMES[1], "../secret.jpg")
    with raises(DatasetError, "damaged-file", "../secret.jpg"):
        load_authors("test", authors)
    (root / "lists" / "test.txt").unlink()
    with raises(DatasetError, "missing-file", root / "lists" / "test.txt"):
        load_authors("test", authors)


def test_archives_that_are_not_extracted_are_named(tmp_path: Path) -> None:
    (tmp_path / "lists.tgz").write_bytes(b"-")
    with raises(DatasetError, "dataset-missing", f"tar -xzf {tmp_path / 'lists.tgz'}", CUB2010_PACK.file):
        load_dataset("cub2010", "test", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "name", "halves", "first_test_class"),
    [
        (CUB2010_PACK, "cub2010", ((2_990, 100), (3_043, 100)), "101.White_Pelican"),
        (CARS_HALF_PACK, "cars-half", ((4_052, 98), (4_092, 98)), "099.FIAT_500_Abarth_2012"),
    ],
    ids=["birds", "cars"],
)
def test_the_real_pack_has_the_stated_halves(
    data_root: Path, pack: Pack, name: str, halves: tuple[tuple[int, int], ...], first_test_class: str
) -> None:
    if not (data_root / pack.file).is_file():
        pytest.skip(f"{pack.file} is not in {data_root}")
    train, test = (load_dataset(name, split, data_root) for split in ("train", "test"))
    assert tuple((len(half), len(half.classes)) for half in (train, test)) == halves
    assert not set(train.classes) & set(test.classes)
    assert test.classes[0] == first_test_class
    for half in (train, test):
        assert np.bincount(half.labels).min() >= 20
        for i in range(0, len(half), 499):
            assert half.sources[i].startswith(f"{half.classes[half.labels[i]]}/")
            assert max(open_image(half.images[i]).size) >= 60


def test_the_counts_add_up_to_the_whole_sets() -> None:
    for expected, images, classes in (
        (photographs.CUB2010_EXPECTED, 6_033, 200),
        (photographs.CARS_HALF_EXPECTED, 8_144, 196),
    ):
        assert sum(counts.images for counts in expected.values()) == images
        assert sum(counts.classes for counts in expected.values()) == classes
