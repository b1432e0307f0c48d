"""A CSV file of images and labels as a data set: what a folder says by its subfolders, a table says by its columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zoo.datasets.dataset import FOLDER, SPLITS, WHOLE, Dataset
from zoo.errors import DatasetError, UsageError
from zoo.paths import expand, is_folder

IMAGE, LABEL, SPLIT, QUERY = "image", "label", "split", "query"
PATH = "path"
"""What the column image is called in the tables that `zoo embed` writes and `zoo index --labels` reads."""

TRUTH = {"1": True, "true": True, "0": False, "false": False}
"""How a cell says whether an image searches."""

Row = Mapping[str, str]


def is_table(path: str | Path) -> bool:
    """Whether the name is a table's, and not a folder's."""
    return expand(path).suffix.lower() == ".csv" and not is_folder(path)


def is_parted(path: str | Path) -> bool:
    """Whether the table has the column split. Raises what `load` raises, but for labels that are missing."""
    return SPLIT in read(path)[0]


def check_parted(path: str | Path) -> None:
    """Raise `DatasetError` unless every class is of one split, and there are both; else what `load` raises."""
    path = expand(path)
    rows = read(path, labelled=True)
    if SPLIT not in rows[0]:
        raise DatasetError(
            f"{path} has no column {SPLIT}, and a study measures on classes that it did not train on: add the column, "
            "with train or test in every row, so that no class is in both."
        )
    train, test = (set(_of_split(path, rows, split).classes) for split in SPLITS)
    if both := sorted(train & test):
        raise DatasetError(
            f"{path} has {len(both)} class(es) in both splits ({', '.join(both[:5])}), and a study measures on classes "
            "that it did not train on: let each be in one of them."
        )


def load(split: str, path: str | Path) -> Dataset:
    """The images of a CSV file in UTF-8 with the columns image (or path) and label.

    Images are relative to the table's folder. With a column split, train or test in each row, the rows of the one asked
    for are the data set; otherwise all are, whichever is asked for, and its split is called "all". With a column query,
    the images that it marks (1 or true) search the others (0 or false) alone, where they are measured: it becomes the
    factor `query`. Other columns are not read.

    Raises `DatasetError` for a table that is missing, empty or of a single class, and `UsageError`, naming the line,
    for one that is none, lacks a column or a cell, or lists an image twice.
    """
    path = expand(path)
    dataset = _of_split(path, read(path, labelled=True), split)
    if len(dataset.classes) == 1:
        raise DatasetError(f"{path} holds the single class {dataset.classes[0]!r} ({split}); at least two are needed.")
    return dataset


def load_unlabelled(split: str, path: str | Path) -> Dataset:
    """As `load`, of a table that may lack labels: the class of an image without one is "", and one class is enough."""
    path = expand(path)
    return _of_split(path, read(path), split)


def images_of(path: str | Path) -> list[Path]:
    """The images that a table lists, of one with the column split those to train on; labels play no part.

    Raises what `load_unlabelled` raises.
    """
    path = expand(path)
    rows = read(path)
    return [place_of(path, row[IMAGE]) for row in rows if row.get(SPLIT, SPLITS[0]) == SPLITS[0]]


def place_of(path: Path, image: str) -> Path:
    """Where an image lies that a table names: from the table's folder."""
    return path.parent / expand(image)


def _of_split(path: Path, rows: list[Row], split: str) -> Dataset:
    if SPLIT not in rows[0]:
        split = WHOLE
    elif split == WHOLE:
        raise DatasetError(f"{path} has the column {SPLIT}, and is no split of its own; name train or test.")
    else:
        rows = [row for row in rows if row[SPLIT] == split]
    if not rows:
        raise DatasetError(f"{path} lists no images of the split {split}.")
    classes, labels = np.unique([row[LABEL] for row in rows], return_inverse=True)
    names = [row[IMAGE] for row in rows]
    images = [place_of(path, name) for name in names]
    asks = {QUERY: np.array([TRUTH[row[QUERY].lower()] for row in rows], np.int64)} if QUERY in rows[0] else {}
    return Dataset(FOLDER, split, images, labels.astype(np.int64), tuple(map(str, classes)), names, asks)


def read(path: str | Path, labelled: bool = False) -> list[Row]:
    """The rows, one at least: image, label ("" for none) and, where the table has these columns, split and query.

    labelled: every row needs a label. Raises what `load` raises of a table that is missing, empty or none.
    """
    path = expand(path)
    if not path.is_file():
        raise DatasetError(f"there is no file {path}.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = _columns(path, list(reader.fieldnames or ()), labelled)
            rows = [(reader.line_num, _row(path, reader, row, columns)) for row in reader]
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV in UTF-8: {error}.") from None
    if not rows:
        raise DatasetError(f"{path} lists no images.")
    _check(path, rows, labelled)
    return [row for _, row in rows]


def _row(path: Path, reader: csv.DictReader[str], row: dict[Any, Any], columns: Mapping[str, str]) -> dict[str, str]:
    """The cells that are read."""
    check_cells(path, reader, row)
    return {name: row.get(key) or "" for name, key in columns.items()}


def check_cells(path: Path, reader: csv.DictReader[str], row: Mapping[Any, Any]) -> None:
    """Raise `UsageError` where the row just read has more cells than the header: a comma cut a label off, maybe."""
    if any(row.get(None) or ()):  # so the reader calls further cells
        raise UsageError(
            f"{path}, line {reader.line_num}: the row has more cells than the header, which has "
            f'{len(reader.fieldnames or ())}; a comma within a cell needs quotation marks, as "a, b".'
        )


def _columns(path: Path, header: list[str], labelled: bool) -> dict[str, str]:
    """The header's name of each column that is read."""
    image = IMAGE if IMAGE in header else PATH
    if image not in header or (labelled and LABEL not in header):
        needed = f"{IMAGE} (or {PATH})"
        columns = f"columns {needed} and {LABEL}" if labelled else f"column {needed}"
        raise UsageError(
            f"{path} needs a header with the {columns}, and {SPLIT} where it is parted into train and test; it has: "
            f"{', '.join(header) or 'nothing'}."
        )
    wanted = {IMAGE: image, LABEL: LABEL, **{name: name for name in (SPLIT, QUERY) if name in header}}
    if twice := [name for name in wanted.values() if header.count(name) > 1]:
        raise UsageError(f"{path} has the column {twice[0]} more than once.")
    return wanted


def _check(path: Path, rows: list[tuple[int, dict[str, str]]], labelled: bool) -> None:
    seen: set[str] = set()
    for line, row in rows:
        if labelled and not (row[IMAGE] and row[LABEL]):
            raise UsageError(f"{path}, line {line}: an image and a label are needed, both.")
        if not row[IMAGE]:
            raise UsageError(f"{path}, line {line}: an image is needed.")
        if row[IMAGE] in seen:
            raise UsageError(f"{path}, line {line}: {row[IMAGE]} is listed twice.")
        if row.get(SPLIT, SPLITS[0]) not in SPLITS:
            raise UsageError(f"{path}, line {line}: the split is {' or '.join(SPLITS)}, not {row[SPLIT]!r}.")
        if row.get(QUERY, "0").lower() not in TRUTH:
            raise UsageError(f"{path}, line {line}: query is {', '.join(TRUTH)}, not {row[QUERY]!r}.")
        seen.add(row[IMAGE])
