"""Published counts and archives of the data sets that are not downloaded."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.raising import raises
from tests.zoo.data.written import write_lines
from zoo.data import cifar100, load_dataset
from zoo.data.official import Counts, OfficialDataset
from zoo.data.retrieval_sets import (
    CARS_SOURCE,
    CUB_SOURCE,
    INSHOP_SOURCE,
    SOP_SOURCE,
    load_cars,
    load_cub,
    load_inshop,
    load_sop,
)
from zoo.errors import DatasetError


@pytest.mark.parametrize(
    ("loader", "part", "images", "classes"),
    [
        (load_cub, "train", 5_864, 100),
        (load_cub, "test", 5_924, 100),
        (load_cars, "train", 8_054, 98),
        (load_cars, "test", 8_131, 98),
        (load_sop, "train", 59_551, 11_318),
        (load_sop, "test", 60_502, 11_316),
        (load_inshop, "train", 25_882, 3_997),
        (load_inshop, "query", 14_218, 3_985),
        (load_inshop, "gallery", 12_612, 3_985),
        (load_inshop, "test", 14_218 + 12_612, 3_985),
        (cifar100.load, "train", 25_000, 50),
        (cifar100.load, "test", 25_000, 50),
    ],
)
def test_the_counts_that_are_checked_are_the_published_ones(
    loader: Callable[..., object], part: str, images: int, classes: int
) -> None:
    assert inspect.signature(loader).parameters["expected"].default[part] == Counts(images, classes)


@pytest.mark.parametrize("source", [CUB_SOURCE, CARS_SOURCE, SOP_SOURCE, INSHOP_SOURCE], ids=lambda source: source.name)
def test_the_reason_why_it_is_not_downloaded_is_given(source: OfficialDataset, tmp_path: Path) -> None:
    with raises(DatasetError, "dataset-missing", source.unfetched) as caught:
        load_dataset(source.name, "test", tmp_path)
    assert "not extracted" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "archive", "top"),
    [
        ("cub", "CUB_200_2011.tgz", "CUB_200_2011"),
        ("cars", "car_ims.tgz", "car_ims"),
        ("sop", "Stanford_Online_Products.zip", "Stanford_Online_Products"),
    ],
)
def test_an_archive_that_was_not_extracted_is_named_with_the_command(
    name: str, archive: str, top: str, tmp_path: Path
) -> None:
    data = tmp_path / "my data"
    packed = data / archive
    inside = write_lines(tmp_path / top / "x.txt", "x")
    data.mkdir()
    if archive.endswith(".zip"):
        with ZipFile(packed, "w") as zipped:
            zipped.write(inside, f"{top}/x.txt")
    else:
        with tarfile.open(packed, "w:gz") as tarred:
            tarred.add(inside, f"{top}/x.txt")
    with raises(DatasetError, "dataset-missing", packed) as caught:
        load_dataset(name, "test", data)
    message = str(caught.value)
    if archive.endswith(".zip"):
        assert f"unzip {shlex.quote(str(packed))} -d {shlex.quote(str(data))}." in message
        return
    command = message.partition("not extracted: ")[2].partition(". Get it from")[0]
    subprocess.run(shlex.split(command), check=True)
    assert (data / top / "x.txt").is_file()


def test_an_archive_within_or_beside_a_copy_that_lacks_files_is_named_too(tmp_path: Path) -> None:
    root = tmp_path / "In-shop Clothes Retrieval Benchmark"
    rows = ["img/a.jpg id_1 train", "img/b.jpg id_2 train"]
    write_lines(root / "Eval" / "list_eval_partition.txt", "2", "image_name item_id evaluation_status", *rows)
    packed = write_lines(root / "Img" / "img.zip", "")
    with raises(DatasetError, "missing-file", "2 of the 2") as error:
        load_inshop("train", tmp_path, {"train": Counts(2, 2)})
    assert f"unzip {shlex.quote(str(packed))} -d {shlex.quote(str(packed.parent))}." in str(error.value)
    (tmp_path / "CUB_200_2011").mkdir()
    write_lines(tmp_path / "CUB_200_2011.tgz", "")
    with raises(DatasetError, "missing-file", "images.txt", "CUB_200_2011.tgz", "tar -xzf"):
        load_dataset("cub", "train", tmp_path)
