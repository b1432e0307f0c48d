"""Table of data sets and the check of their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.children import run_python
from tests.raising import raises
from zoo.data import DATASETS, load_dataset
from zoo.errors import DatasetError


def test_the_table_names_the_loaders() -> None:
    assert list(DATASETS) == [
        "glyphs",
        "omniglot",
        "cifar100",
        "cub",
        "cub2010",
        "cars",
        "cars-half",
        "sop",
        "inshop",
        "folder",
    ]


@pytest.mark.parametrize(
    ("name", "split", "code", "hint"),
    [
        ("omniglt", "test", "unknown-name", "'omniglot'"),
        ("xyz", "test", "unknown-name", ", ".join(DATASETS)),
        ("glyphs", "tset", "unknown-name", "'test'"),
        ("glyphs", "", "unknown-name", "train, test"),
        ("folder", "nonsense", "unknown-name", "train, test, all"),
        ("folder", "al", "unknown-name", "'all'"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, split: str, code: str, hint: str) -> None:
    with raises(DatasetError, code, hint) as caught:
        load_dataset(name, split)
    assert ("Did you mean" in str(caught.value)) == ("," not in hint)


def test_importing_the_table_imports_no_data_set() -> None:
    code = "import sys, zoo.data; print([m for m in sys.modules if m.startswith(('zoo.data.', 'matplotlib'))])"
    loaded = run_python(code)
    assert not {*DATASETS, "official", "photographs", "retrieval_sets", "download", "matplotlib"} - {"folder"} & set(
        loaded.replace("'", ".").split(".")
    )


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "glyphs"])
def test_a_missing_folder_is_an_error(name: str, tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", "~nosuchuser/data"):
        with raises(DatasetError, "not-found", folder):
            load_dataset(name, "test", folder)
