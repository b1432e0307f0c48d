"""What holds of every data set that is not downloaded: its published counts, and what is said of its archive."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

from tests.zoo.datasets.written import write_lines
from zoo.data import cifar100, load, retrieval_sets
from zoo.data.official import Counts
from zoo.errors import DatasetError


@pytest.mark.parametrize(
    ("module", "part", "images", "classes"),
    [
        (retrieval_sets, "train", 5_864, 100),
        (retrieval_sets, "test", 5_924, 100),
        (retrieval_sets, "train", 8_054, 98),
        (retrieval_sets, "test", 8_131, 98),
        (retrieval_sets, "train", 59_551, 11_318),
        (retrieval_sets, "test", 60_502, 11_316),
        (retrieval_sets, "train", 25_882, 3_997),
        (retrieval_sets, "query", 14_218, 3_985),
        (retrieval_sets, "gallery", 12_612, 3_985),
        (retrieval_sets, "test", 14_218 + 12_612, 3_985),
        (cifar100, "train", 25_000, 50),
        (cifar100, "test", 25_000, 50),
    ],
)
def test_the_counts_that_are_checked_are_the_published_ones(
    module: ModuleType, part: str, images: int, classes: int
) -> None:
    assert inspect.signature(module.load).parameters["expected"].default[part] == Counts(images, classes)


@pytest.mark.parametrize("module", [retrieval_sets, retrieval_sets, retrieval_sets, retrieval_sets])
def test_why_it_is_not_fetched_is_said(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="It is not fetched for you: ") as error:
        load(module.SOURCE.name, "test", tmp_path)
    assert module.SOURCE.unfetched in str(error.value)
    assert "not extracted" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "archive", "top"),
    [
        ("cub", "CUB_200_2011.tgz", "CUB_200_2011"),
        ("cars", "car_ims.tgz", "car_ims"),
        ("sop", "Stanford_Online_Products.zip", "Stanford_Online_Products"),
    ],
)
def test_an_archive_that_was_not_extracted_is_named_with_what_extracts_it(
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
    with pytest.raises(DatasetError) as error:
        load(name, "test", data)
    said = str(error.value)
    assert f"{packed} is there, but not extracted: " in said
    if archive.endswith(".zip"):
        assert f"unzip {shlex.quote(str(packed))} -d {shlex.quote(str(data))}." in said
        return
    command = said.partition("not extracted: ")[2].partition(". Get it from")[0]
    subprocess.run(shlex.split(command), check=True)
    assert (data / top / "x.txt").is_file()


def test_an_archive_within_or_beside_a_copy_that_lacks_files_is_named_too(tmp_path: Path) -> None:
    root = tmp_path / "In-shop Clothes Retrieval Benchmark"
    rows = ["img/a.jpg id_1 train", "img/b.jpg id_2 train"]
    write_lines(root / "Eval" / "list_eval_partition.txt", "2", "image_name item_id evaluation_status", *rows)
    packed = write_lines(root / "Img" / "img.zip", "")
    with pytest.raises(DatasetError, match="lacks 2 of the 2 files") as error:
        retrieval_sets.load_inshop("train", tmp_path, {"train": Counts(2, 2)})
    assert f"unzip {shlex.quote(str(packed))} -d {shlex.quote(str(packed.parent))}." in str(error.value)
    (tmp_path / "CUB_200_2011").mkdir()
    write_lines(tmp_path / "CUB_200_2011.tgz", "")
    with pytest.raises(DatasetError, match=r"images\.txt is missing\. .*CUB_200_2011\.tgz is there, but not extracted"):
        load("cub", "train", tmp_path)
