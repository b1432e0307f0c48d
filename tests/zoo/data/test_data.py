"""The table of data sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zoo.data import DATASETS, load_dataset
from zoo.errors import DatasetError


def test_the_table_names_the_loaders() -> None:
    assert list(DATASETS) == ["glyphs", "omniglot", "cifar100", "cub", "cars", "sop", "inshop", "folder"]


FOLDERS = (
    " A folder of your own, with one subfolder a class, is measured with dataset='folder', data='DIR', on the command "
    "line with --dataset folder --data DIR."
)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("omniglt", "test", f"no data set 'omniglt'. Did you mean 'omniglot'? Known: {', '.join(DATASETS)}."),
        ("xyz", "test", f"no data set 'xyz'. Known: {', '.join(DATASETS)}."),
        ("glyphs", "tset", "no split 'tset'. Did you mean 'test'? Known: train, test."),
        ("glyphs", "", "no split ''. Known: train, test."),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, split: str, message: str) -> None:
    with pytest.raises(DatasetError) as error:
        load_dataset(name, split)
    assert str(error.value).removesuffix(FOLDERS) == message


def test_importing_the_table_imports_no_data_set() -> None:
    code = "import sys, zoo.data; print([m for m in sys.modules if m.startswith(('zoo.data.', 'matplotlib'))])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {*DATASETS, "official", "retrieval_sets", "download", "matplotlib"} - {"folder"} & set(
        loaded.replace("'", ".").split(".")
    )


@pytest.mark.parametrize("name", DATASETS)
def test_a_mistyped_folder_is_not_passed_over(name: str, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", "~nosuchuser/data"):
        with pytest.raises(DatasetError, match=f"there is no folder {folder}"):
            load_dataset(name, "test", folder)
