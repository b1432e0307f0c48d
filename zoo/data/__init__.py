"""Datasets by name.

Data sets and images: folders, tables, decoding and preprocessing.

Data sets by name: `load("glyphs", "test")`. The table is explicit; each loader is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import DatasetError, nearest
from zoo.paths import expand, is_folder

if TYPE_CHECKING:
    from zoo.data.dataset import Dataset


Loader = Callable[[str, "str | Path | None"], "Dataset"]
"""`(split, data) -> Dataset`; `data` is the folder to look in, or None."""


def _glyphs(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.glyphs import load

    return load(split, data)


def _omniglot(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.omniglot import load

    return load(split, data)


def _cifar100(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.cifar100 import load

    return load(split, data)


def _cub(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.retrieval_sets import load_cub as load

    return load(split, data)


def _cars(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.retrieval_sets import load_cars as load

    return load(split, data)


def _sop(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.retrieval_sets import load_sop as load

    return load(split, data)


def _inshop(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.retrieval_sets import load_inshop as load

    return load(split, data)


def _folder(split: str, data: str | Path | None) -> Dataset:
    from zoo.data.folder import load

    return load(split, data)


DATASETS: dict[str, Loader] = {
    "glyphs": _glyphs,
    "omniglot": _omniglot,
    "cifar100": _cifar100,
    "cub": _cub,
    "cars": _cars,
    "sop": _sop,
    "inshop": _inshop,
    "folder": _folder,
}
"""Every data set that has a name. A new one is one file and one line here."""


def load_dataset(name: str, split: str = "test", data: str | Path | None = None) -> Dataset:
    """One split ("train" or "test") of the data set `name`.

    `data`: the only folder to look in, instead of `ZOO_DATA` and the download cache; for "folder" it is the data set,
    or a table of it (CSV, see `zoo.data.table`).
    Raises `DatasetError` for an unknown name or split and for data that is missing or not as published.
    """
    check_dataset(name, split, data)
    return DATASETS[name](split, data)


def check_dataset(name: str, split: str = "test", data: str | Path | None = None) -> None:
    """Raise those errors of `load` that need no image to be read: an unknown name or split, no such folder."""
    from zoo.data.dataset import SPLITS, WHOLE

    check_dataset_name(name)
    if split not in SPLITS and (name, split) != ("folder", WHOLE):
        raise DatasetError(f"no split {split!r}.{nearest(split, SPLITS)} Known: {', '.join(SPLITS)}.")
    if data is not None:
        check_dataset_path(data, name)


def check_dataset_path(data: str | Path, name: str) -> None:
    """Raise `DatasetError` where neither the folder of that data set's files is there nor, for "folder", a table."""
    from zoo.data.table import is_table

    if name != "folder":
        check_data_folder(data)
    elif not expand(data).is_dir() and not (is_table(data) and expand(data).is_file()):
        what = "file" if is_table(data) else "folder"
        raise DatasetError(f"{_reason(data, what)}; name the one that holds the data set, or a table of images (.csv).")


def check_data_folder(data: str | Path) -> None:
    """Raise `DatasetError` for a folder of data that is not there."""
    if not expand(data).is_dir():
        raise DatasetError(f"{_reason(data, 'folder')}; name the one that holds the data set.")


def _reason(data: str | Path, what: str) -> str:
    return f"{data} is not a {what}" if expand(data).exists() else f"there is no {what} {data}"


def check_dataset_name(name: str) -> None:
    """Raise `DatasetError` for a name that no data set has."""
    if name in DATASETS:
        return
    folder = name if is_folder(name) else "DIR"
    # A folder's name that resembles a data set's is no typing error.
    hint = nearest(str(name), DATASETS) if folder == "DIR" else f" {name} is a folder."
    raise DatasetError(
        f"no data set {str(name)!r}.{hint} Known: {', '.join(DATASETS)}. A folder of your own, with one subfolder "
        f"a class, is measured with dataset='folder', data={str(folder)!r}, on the command line with --dataset folder "
        f"--data {folder}."
    )
