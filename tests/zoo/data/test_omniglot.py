"""Omniglot: the split as published, from the zip, from its extracted folder, and over HTTP."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from tests.raising import raises
from tests.zoo.data.faulty_server import Fault, serving
from zoo.data import download, load_dataset, omniglot
from zoo.data.images import open_image
from zoo.errors import DatasetError

TEST_ALPHABETS = {"Japanese_(katakana)", "Sanskrit", "Tagalog"}


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOO_DATA", raising=False)
    monkeypatch.setattr(download.time, "sleep", lambda _: None)


@pytest.mark.parametrize(("split", "characters"), [("train", 136), ("test", 106)])
def test_the_split_is_the_published_one(data_root: Path, split: str, characters: int) -> None:
    dataset = load_dataset("omniglot", split, data_root)
    assert (dataset.name, dataset.split) == ("omniglot", split)
    assert len(dataset.classes) == characters
    assert Counter(dataset.labels.tolist()) == dict.fromkeys(range(characters), 20)
    assert list(dataset.sources) == sorted(set(dataset.sources))
    for i in range(0, len(dataset), 7):
        _, alphabet, character, file = dataset.sources[i].split("/")
        assert dataset.classes[dataset.labels[i]] == f"{alphabet}/{character}"
        assert omniglot.ALPHABETS[dataset.factors["alphabet"][i]] == alphabet
        assert dataset.factors["drawer"][i] == int(file[5:7])
    assert dataset.factors["drawer"].reshape(-1, 20).tolist() == [list(range(1, 21))] * characters


def test_no_alphabet_is_in_both_splits(data_root: Path) -> None:
    train, test = (load_dataset("omniglot", split, data_root) for split in ("train", "test"))
    alphabets = {split.split: {name.split("/")[0] for name in split.classes} for split in (train, test)}
    assert alphabets["test"] == TEST_ALPHABETS
    assert not alphabets["train"] & alphabets["test"]
    assert not set(train.images) & set(test.images)


def test_images_are_dark_strokes_on_white(data_root: Path) -> None:
    dataset = load_dataset("omniglot", "test", data_root)
    for i in range(0, len(dataset), 211):
        pixels = np.asarray(open_image(dataset.images[i]))
        assert pixels.shape == (105, 105)
        assert set(np.unique(pixels)) == {0, 255}
        assert 0.8 < (pixels == 255).mean() < 1


def test_an_extracted_folder_is_the_same_as_the_zip(data_root: Path, tmp_path: Path) -> None:
    with ZipFile(data_root / "images_background_small2.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "images_background_small2" / "Tagalog" / "character01" / ".DS_Store").write_bytes(b"")
    from_zip, from_folder = load_dataset("omniglot", "test", data_root), load_dataset("omniglot", "test", tmp_path)
    assert [Path(path).read_bytes() for path in from_folder.images] == list(from_zip.images)
    assert (from_folder.sources, from_folder.classes) == (from_zip.sources, from_zip.classes)
    np.testing.assert_array_equal(from_folder.labels, from_zip.labels)

    shutil.rmtree(tmp_path / "images_background_small2" / "Sanskrit" / "character01")
    url = f"{omniglot.BASE_URL}/images_background_small2.zip"
    with raises(DatasetError, "damaged-file", 2100, 105, 2120, 106, url):
        load_dataset("omniglot", "test", tmp_path)


def test_another_zip_of_that_name_is_refused(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "images_background_small1.zip"
    shutil.copyfile(data_root / path.name, path)
    path.chmod(0o644)
    with path.open("ab") as file:
        file.write(b"!")
    url = f"{omniglot.BASE_URL}/{path.name}"
    with raises(DatasetError, "hash-mismatch", path, url) as caught:
        load_dataset("omniglot", "train", tmp_path)
    assert "Delete" not in str(caught.value)
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))  # a file that is deleted from there is downloaded again
    with raises(DatasetError, "hash-mismatch", path, url, "Delete"):
        load_dataset("omniglot", "train")


def test_the_environment_names_a_folder_too(data_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOO_DATA", str(data_root))
    assert len(load_dataset("omniglot", "test")) == 2120
    with raises(DatasetError, "dataset-missing", tmp_path, "images_background_small2.zip", omniglot.BASE_URL):
        load_dataset("omniglot", "test", tmp_path)  # it does not look elsewhere


@pytest.mark.usefixtures("no_data")
def test_a_download_goes_into_the_cache_and_is_found_there(data_root: Path, own_zoo: Path) -> None:
    name = "images_background_small2.zip"
    with serving({name: (data_root / name).read_bytes()}) as server:
        server.fail(Fault(drop=1_000_000))
        first = omniglot.load("test", base_url=server.url)
        again = omniglot.load("test", base_url=server.url)
        assert server.ranges == [None, "bytes=1000000-"]
    assert first.images == again.images
    assert (own_zoo / "data" / name).is_file()


@pytest.mark.usefixtures("no_data")
def test_a_failed_download_names_the_folders_and_the_address(
    own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as gone:
        pass
    monkeypatch.setenv("ZOO_DATA", str(tmp_path))
    with raises(DatasetError, "download-failed") as error:
        omniglot.load("train", base_url=gone.url)
    message = str(error.value)
    for part in (str(tmp_path), str(own_zoo / "data"), f"{gone.url}/images_background_small1.zip", "--data", "refused"):
        assert part in message
