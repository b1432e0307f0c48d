"""Data sets by name: `load_dataset("glyphs", "test")`.

The table is explicit; the module of a data set is imported when it is used.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.console import count
from zoo.errors import DatasetError, UsageError, nearest, unknown
from zoo.paths import expand, is_folder

if TYPE_CHECKING:
    from zoo.data.dataset import Dataset

__all__ = ["DATASETS", "class_folds", "export_dataset", "load_dataset"]

Loader = Callable[[str, "str | Path | None"], "Dataset"]
"""`(split, data) -> Dataset`; `data` is the folder to look in, or None."""


def _lazy(module: str, function: str = "load") -> Loader:
    """Return a loader that imports its module at its first call."""

    def load(split: str, data: str | Path | None) -> Dataset:
        return getattr(import_module(f"zoo.data.{module}"), function)(split, data)

    return load


DATASETS: dict[str, Loader] = {
    "glyphs": _lazy("glyphs"),
    "omniglot": _lazy("omniglot"),
    "cifar100": _lazy("cifar100"),
    "cub": _lazy("retrieval_sets", "load_cub"),
    "cub2010": _lazy("photographs", "load_cub2010"),
    "cars": _lazy("retrieval_sets", "load_cars"),
    "cars-half": _lazy("photographs", "load_cars_half"),
    "sop": _lazy("retrieval_sets", "load_sop"),
    "inshop": _lazy("retrieval_sets", "load_inshop"),
    "folder": _lazy("folder"),
}
"""Every data set that has a name. A new one is one file and one line here."""

RESEARCH_ONLY = "research and evaluation only"
LICENCES = {"cub2010": RESEARCH_ONLY, "cars-half": RESEARCH_ONLY}
"""Data sets whose terms pass on to the models that learn from them; their images are not passed on with a model."""

BUILT_IN = frozenset({"glyphs"})
"""Data sets that read no folder."""


def load_dataset(name: str, split: str = "test", data: str | Path | None = None) -> Dataset:
    """Return one split of a data set.

    Args:
        name: A name in `DATASETS`.
        split: "train" or "test"; for "folder" also "all".
        data: The only folder to look in, instead of `ZOO_DATA` and the download cache. For "folder" it is the data set
            itself, or a table of it (CSV, see `zoo.data.table`).

    Raises:
        DatasetError: If the name or split is unknown, the data is missing or not as published, or a folder is given
            for a data set that reads none.
    """
    check_dataset(name, split, data)
    return DATASETS[name](split, data)


def class_folds(dataset: Dataset, folds: int = 5, seed: int = 0) -> list[tuple[Dataset, Dataset]]:
    """Divide the classes into folds, and return for each the images of all other classes and those of its own.

    Args:
        dataset: The data set.
        folds: The number of folds; each has two classes or more.
        seed: Seed of the order in which the classes are dealt out.

    Raises:
        UsageError: If there are fewer than two folds, or fewer than two classes for each.
    """
    import numpy as np

    from zoo.data.dataset import subset

    classes = len(dataset.classes)
    if not 2 <= folds <= classes // 2:
        raise UsageError(
            f"{count(classes, 'class')} cannot be divided into {folds} folds of two or more.", code="invalid-value"
        )
    fold_of_class = np.empty(classes, np.int64)
    fold_of_class[np.random.default_rng(seed).permutation(classes)] = np.arange(classes) % folds
    own = fold_of_class[dataset.labels]
    return [(subset(dataset, own != fold, "train"), subset(dataset, own == fold, "test")) for fold in range(folds)]


def export_dataset(
    name: str,
    out: str | Path,
    split: str = "test",
    data: str | Path | None = None,
    *,
    merge_labels: bool = False,
) -> Dataset:
    """Write one split of a data set as a folder with one subfolder per class, and return the split.

    Args:
        name: As in `load_dataset`, as are `split` and `data`.
        out: The folder to write.
        split: The split.
        data: The folder to look in.
        merge_labels: Make one class of labels that differ by spaces, letter case or Unicode form alone.

    Raises:
        DatasetError: As `load_dataset`, or if the folder holds something else.
    """
    from zoo.data.dataset import export_folder
    from zoo.data.labels import merge_spellings

    images = load_dataset(name, split, data)
    images = merge_spellings(images) if merge_labels else images
    export_folder(images, out)
    return images


def check_dataset(name: str, split: str = "test", data: str | Path | None = None) -> None:
    """Raise those errors of `load_dataset` that need no image: of the name, the split and the folder."""
    from zoo.data.dataset import FOLDER, SPLITS, WHOLE

    check_dataset_name(name)
    known = (*SPLITS, WHOLE) if name == FOLDER else SPLITS
    if split not in known:
        raise unknown(f"{name} split", split, known, error=DatasetError)
    if data is None:
        return
    if name in BUILT_IN:
        raise DatasetError(
            f"{name} is drawn from fonts and takes no --data; to measure your own images add --dataset folder "
            "(zoo train: --set data.dataset=folder).",
            code="conflicting-options",
        )
    check_dataset_path(data, name)


def folder_for(name: str, data: str | Path | None) -> str | Path | None:
    """Return `data`, a folder for several data sets, or None for a data set that reads no folder."""
    return None if name in BUILT_IN else data


def check_dataset_path(data: str | Path, name: str) -> None:
    """Raise `DatasetError` if `data` is not a folder or, for the data set "folder", an existing table."""
    from zoo.data.formats import hub_name
    from zoo.data.table import is_table

    path = expand(data)
    table = name == "folder" and is_table(data)
    if (table and (path.exists() or hub_name(data))) or path.is_dir():
        return
    kind = "file" if table else "folder"
    problem = f"{data} is not a {kind}" if path.exists() else f"there is no {kind} {data}"
    wanted = (
        "folder of your images, or a table of them (.csv, .parquet, ...)"
        if name == "folder"
        else "one that holds the data set"
    )
    raise DatasetError(f"{problem}; name the {wanted}.", code="not-found")


def check_dataset_name(name: str) -> None:
    """Raise `DatasetError` for a name that is not in `DATASETS`, or not a name."""
    if not isinstance(name, str | os.PathLike):
        raise DatasetError(
            f"a data set is given by its name or as a Dataset, not as {type(name).__name__}; give the labels of "
            "embeddings as labels=.",
            code="invalid-value",
        )
    if name in DATASETS:
        return
    folder = name if is_folder(name) else "DIR"
    # A folder's name that resembles a data set's is not a typing error.
    hint = nearest(str(name), DATASETS) if folder == "DIR" else f" {name} is a folder."
    raise DatasetError(
        f"no data set {str(name)!r}.{hint} Known: {', '.join(DATASETS)}. A folder of your own, with one subfolder "
        f"per class, is measured with dataset='folder', data={str(folder)!r}, on the command line with "
        f"--dataset folder --data {shlex.quote(str(folder))}",
        code="unknown-name",
    )
