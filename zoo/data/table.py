"""Tables of images: labels, splits, queries and metadata, as CSV, as TSV, or in a format of `zoo.data.formats`.

`load` reads a table as a data set; `read_table` and `read_label_file` read labels and metadata for a gallery;
`read_column` reads one column. Files are UTF-8 with a header; a row with more cells than the header is refused.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zoo.console import note_once
from zoo.data import formats
from zoo.data.dataset import BOTH, FOLDER, QUERY, SPLITS, WHOLE, Dataset
from zoo.data.names import FileFinder, Paths, canonical, escaped
from zoo.errors import DatasetError, UsageError, ZooError
from zoo.paths import expand, is_folder
from zoo.render import read_cell

IMAGE, LABEL, SPLIT = "image", "label", "split"
KEY = "key"
"""The column of the users' own names of images, which a gallery keeps."""

PATH = "path"
"""Another name of the image column, in the tables that `zoo embed` writes."""

IS_QUERY, IS_GALLERY = "is_query", "is_gallery"
"""Columns that say whether an image searches, and whether it is found, in the tables of OML."""

VALIDATION = "validation"
"""The split to measure on in the tables of OML and of the Hub."""

BOX = ("x_1", "y_1", "x_2", "y_2")
"""Columns of a part of the image in the tables of OML."""

BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
"""Values of a cell that says whether an image is a query."""

# Longer numbers do not fit into 64 bits without loss: they are identifiers.
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,30})?")
_TRUE_OR_FALSE = {"true": True, "false": False}

Row = Mapping[str, str]


def is_table(path: str | Path) -> bool:
    """Return whether a path is a file .csv or .tsv, or of a format of `zoo.data.formats`."""
    return (expand(path).suffix.lower() in formats.TEXTS and not is_folder(path)) or formats.is_format(path)


def is_own_table(path: str | Path | None) -> bool:
    """Return whether a path is a table but not a folder, which without a data set's name means "folder"."""
    return path is not None and not is_folder(path) and is_table(path)


def as_text(path: str | Path) -> Path:
    """Return a table as CSV or TSV: itself, or the one that `zoo.data.formats` writes."""
    return formats.written_table(path) if formats.is_format(path) else expand(path)


def has_splits(path: str | Path) -> bool:
    """Return whether the table has the column split; raise the errors of `read_image_rows`."""
    return SPLIT in read_image_rows(path)[0]


def check_splits(path: str | Path) -> None:
    """Raise `DatasetError` unless the table has both splits and every class is in one of them; see also `load`."""
    path = expand(path)
    rows = read_image_rows(path, labelled=True)
    if SPLIT not in rows[0]:
        raise DatasetError(
            f"{path} has no column {SPLIT}, and a study measures on classes that it did not train on: add the column, "
            "with train or test in every row, so that no class is in both.",
            code="wrong-split",
        )
    train, test = (set(_split_dataset(path, rows, split).classes) for split in SPLITS)
    if shared := sorted(train & test):
        raise DatasetError(
            f"{path} has {len(shared)} class(es) in both splits ({', '.join(shared[:5])}), and a study measures on "
            "classes that it did not train on: put each class into one split.",
            code="invalid-table",
        )


def load(split: str, path: str | Path) -> Dataset:
    """Read a table with the columns image (or path) and label as a data set.

    Images are relative to the table's folder. With the column split (train or test in each row) the data set has the
    rows of the given split; otherwise it has all rows, and its split is "all". Rows of a split "validation" are those
    of test, if there are no others. The column query (1 or true for queries, 0 or false for the gallery that they
    search), or the columns is_query and is_gallery, which may both be true, become the factor `query`. Other columns
    are ignored.

    Args:
        split: "train", "test", or "all" for a table without a column split.
        path: The table.

    Raises:
        DatasetError: If the table is missing, empty or has a single class.
        UsageError: If the file is not a table, a column or a cell is missing, or an image is listed twice.
    """
    path = expand(path)
    dataset = _split_dataset(path, read_image_rows(path, labelled=True), split)
    if len(dataset.classes) == 1:
        raise DatasetError(
            f"{path} holds the single class {dataset.classes[0]!r} ({split}); two are needed to measure a model, "
            "four to train one.",
            code="too-few-classes",
        )
    return dataset


def load_unlabelled(split: str, path: str | Path) -> Dataset:
    """Read a table as `load` does, but labels may be missing (their class is "") and one class is enough."""
    path = expand(path)
    return _split_dataset(path, read_image_rows(path), split)


def training_images(path: str | Path) -> list[tuple[Path, str]]:
    """Return the images that a table lists, without those of the test split, each with its label, "" without one.

    Raises:
        DatasetError: If the table is missing or empty.
        UsageError: If the file is not a table, or a column or a cell is missing or wrong.
    """
    path = as_text(path)
    rows = read_image_rows(path)
    names = image_paths(path, [row[IMAGE] for row in rows])
    pairs = zip(names, rows, strict=True)
    return [(image, row[LABEL]) for image, row in pairs if row.get(SPLIT, SPLITS[0]) == SPLITS[0]]


def image_paths(path: Path, images: Iterable[str]) -> list[Path]:
    """Return the paths of images that the table at `path` names relative to its own folder.

    A name that no file has may differ from a file's by Unicode form, letter case or backslashes.

    Raises:
        UsageError: If several files could be meant.
    """
    finder = FileFinder()
    return [finder.find(path.parent, image) for image in images]


def _split_dataset(path: Path, rows: list[Row], split: str) -> Dataset:
    if SPLIT not in rows[0]:
        split = WHOLE
    elif split == WHOLE:
        raise DatasetError(
            f"{path} has the column {SPLIT} and cannot be read as one; name train or test.", code="wrong-split"
        )
    else:
        rows = [row for row in rows if row[SPLIT] == split]
    if not rows:
        raise DatasetError(f"{path} lists no images of the split {split}.", code="no-images")
    classes, labels = np.unique([row[LABEL] for row in rows], return_inverse=True)
    names = [row[IMAGE] for row in rows]
    root = as_text(path)
    images = image_paths(root, names)
    factors = _query_factor(path, rows)
    coded = labels.astype(np.int64)
    return Dataset(FOLDER, split, images, coded, tuple(map(str, classes)), names, factors, path.name)


def _query_factor(path: Path, rows: list[Row]) -> dict[str, np.ndarray]:
    """Return the factor `query` of rows, of which all or none are marked; {} if every image searches all others."""
    marks = [row.get(QUERY, "") for row in rows]
    if not any(marks):
        return {}
    if not all(marks):
        raise UsageError(
            f"{path}: of {len(marks)} rows of a split, {marks.count('')} do not say whether they are queries.",
            code="invalid-table",
        )
    factor = np.array(marks, np.int64)
    return {} if (factor == BOTH).all() else {QUERY: factor}


def read_image_rows(path: str | Path, labelled: bool = False) -> list[Row]:
    """Return the rows, at least one: image, label ("" if missing) and, if the table has them, split and query.

    Args:
        path: The table.
        labelled: Whether every row needs a label.

    Raises:
        DatasetError: If the table is missing or empty.
        UsageError: If the file is not a table, or a column or a cell is missing or wrong.
    """
    path = as_text(path)
    if not path.is_file():
        raise DatasetError(f"there is no file {path}.", code="not-found")
    with _csv_rows(path, DatasetError) as (header, cells):
        columns = _table_columns(path, header, labelled)
        rows = [(line, {name: row.get(key) or "" for name, key in columns.items()}) for line, row in cells]
    if not rows:
        raise DatasetError(f"{path} lists no images.", code="no-images")
    _check_image_rows(path, rows, labelled)
    return _in_our_terms(path, [row for _, row in rows])


def _in_our_terms(path: Path, rows: list[dict[str, str]]) -> list[Row]:
    """Return rows with the marks of queries as numbers, and with the split validation as test where that is missing."""
    for row in rows:
        if QUERY in row:
            row[QUERY] = str(int(BOOLEANS[row[QUERY].lower()]))
        elif IS_QUERY in row:
            asks, found = (BOOLEANS.get(row.pop(name).lower()) for name in (IS_QUERY, IS_GALLERY))
            row[QUERY] = "" if asks is None and found is None else str(BOTH if asks and found else int(bool(asks)))
    splits = {row.get(SPLIT) for row in rows}
    if VALIDATION not in splits:
        return list(rows)
    if SPLITS[1] in splits:
        note_once(f"{path.name}: the rows of the split {VALIDATION} are not used; those of train and test are")
        return [row for row in rows if row[SPLIT] != VALIDATION]
    return [{**row, SPLIT: SPLITS[1] if row[SPLIT] == VALIDATION else row[SPLIT]} for row in rows]


@contextmanager
def _csv_rows(
    path: Path, unreadable: type[ZooError] = UsageError
) -> Iterator[tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]]:
    """Open a CSV file and yield its header and an iterator over (line number, row).

    Raises:
        ZooError: The error `unreadable`, if the file cannot be read.
        UsageError: If it is not CSV in UTF-8, or a row has more cells than the header, perhaps as a comma cut a label.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True, delimiter=formats.TEXTS.get(path.suffix.lower(), ","))
            reader.fieldnames = header = [canonical(read_cell(name)) for name in reader.fieldnames or ()]
            if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
                raise UsageError(
                    f"{path} separates its columns by {mark!r}; save it as CSV with commas.", code="invalid-table"
                )

            def rows() -> Iterator[tuple[int, dict[str, Any]]]:
                for row in reader:
                    if any(row.pop(None, None) or ()):  # csv stores surplus cells under None
                        raise UsageError(
                            f"{path}, line {reader.line_num}: the row has more cells than the header, which has "
                            f'{len(header)}; a comma within a cell needs quotation marks, as "a, b".',
                            code="invalid-table",
                        )
                    yield reader.line_num, {name: cell and _cell(name, cell) for name, cell in row.items()}

            yield header, rows()
    except OSError as error:
        raise unreadable(f"{path} cannot be read: {error.strerror or error}.", code="unreadable-file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV in UTF-8: {error}.", code="invalid-table") from None


def _cell(name: str, cell: str) -> str:
    """Return a cell of a column. The name of a file stays unchanged; other texts are equal if they look the same."""
    return read_cell(cell) if name in (IMAGE, PATH) else canonical(read_cell(cell))


def _table_columns(path: Path, header: list[str], labelled: bool) -> dict[str, str]:
    """Return the header of each column that is read."""
    image = IMAGE if IMAGE in header else PATH
    if image not in header or (labelled and LABEL not in header):
        needed = f"{IMAGE} (or {PATH})"
        expected = f"columns {needed} and {LABEL}" if labelled else f"column {needed}"
        raise UsageError(
            f"{path} needs a header with the {expected}, and {SPLIT} if it is split into train and test; it has: "
            f"{', '.join(header) or 'nothing'}.",
            code="invalid-table",
        )
    if set(BOX) <= set(header):
        raise UsageError(
            f"{path} has boxes ({', '.join(BOX)}), and models see whole images: cut them out first, and list the cut "
            "images.",
            code="invalid-table",
        )
    marks = (QUERY,) if QUERY in header else (IS_QUERY, IS_GALLERY) if {IS_QUERY, IS_GALLERY} <= set(header) else ()
    columns = {IMAGE: image, LABEL: LABEL, **{name: name for name in (SPLIT, *marks) if name in header}}
    _check_unique(path, header, columns.values())
    return columns


def _check_unique(path: Path, header: list[str], names: Iterable[str]) -> None:
    for name in names:
        if header.count(name) > 1:
            raise UsageError(f"{path} has the column {name} more than once.", code="invalid-table")


def _check_image_rows(path: Path, rows: list[tuple[int, dict[str, str]]], labelled: bool) -> None:
    seen: set[str] = set()
    places = image_paths(path, [row[IMAGE] for _, row in rows])
    for (line, row), image in zip(rows, places, strict=True):
        at = f"{path}, line {line}"
        if labelled and not (row[IMAGE] and row[LABEL]):
            raise UsageError(f"{at}: an image and a label are needed, both.", code="invalid-table")
        if not row[IMAGE]:
            raise UsageError(f"{at}: an image is needed.", code="invalid-table")
        place = os.path.abspath(image)  # noqa: PTH100  # Path.absolute keeps ".."
        if place in seen:
            raise UsageError(f"{at}: {row[IMAGE]} is listed twice.", code="invalid-table")
        if row.get(SPLIT, SPLITS[0]) not in (*SPLITS, VALIDATION):
            raise UsageError(
                f"{at}: the split is {row[SPLIT]!r}; expected {', '.join((*SPLITS, VALIDATION))}.", code="invalid-table"
            )
        marks = {name: row[name] for name in (QUERY, IS_QUERY, IS_GALLERY) if name in row}
        if wrong := [name for name, mark in marks.items() if (mark or name == QUERY) and mark.lower() not in BOOLEANS]:
            raise UsageError(
                f"{at}: {wrong[0]} is {row[wrong[0]]!r}; expected {', '.join(BOOLEANS)}.", code="invalid-table"
            )
        seen.add(place)


@dataclass(frozen=True)
class LabelFile:
    """Labels and metadata of images, keyed by path below the folder or by the name in the table.

    Attributes:
        labels: Label of every path, None for an empty cell. None without the column `label`: then folders' names stay
            the labels.
        columns: Keys of the metadata.
        metadata: Metadata of every path, without empty cells.
        keys: The user's own name of each image that has one; all differ.
    """

    labels: Mapping[str, str | None] | None = None
    columns: tuple[str, ...] = ()
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


def read_column(path: Path, name: str) -> list[str]:
    """Return the cells of a column of a CSV file from top to bottom; a missing cell is "".

    Raises:
        UsageError: If the file cannot be read, has no such column or has it twice, or a row has too many cells.
    """
    with _csv_rows(path) as (header, cells):
        if name not in header:
            raise UsageError(
                f"{path} lacks the column {name}; it has {', '.join(header) or 'none'}.", code="invalid-table"
            )
        _check_unique(path, header, [name])
        return [row[name] or "" for _, row in cells]


def read_label_file(path: Path, sources: Collection[str] = (), folder: Path | None = None) -> LabelFile:
    """Read a CSV file with the column `image`, or else `path`, and at least one more.

    The column `label` holds labels, and `key` the users' own names of images, as texts; every other named column is a
    key of the metadata. The values of a column are
    numbers if all its cells are written as numbers (00123 is not), booleans if all are true or false, else strings.

    Args:
        path: The file.
        sources: The paths of the images below `folder`.
        folder: The folder of the images. The name of an image that is not among `sources` is relative to the file's
            folder, as in a table.

    Raises:
        UsageError: If the file cannot be read or is malformed; the message names the line.
    """
    rows = _read_labels(path, lists=False)
    if folder is None:
        return rows
    root, names, finder = expand(folder).resolve(), Paths(sources), FileFinder()

    def below(name: str) -> str:
        if (source := names.find(name)) is not None:
            return source
        image = finder.find(expand(path).parent, name).resolve()
        return escaped(image.relative_to(root).as_posix()) if image.is_relative_to(root) else name

    labels = None if rows.labels is None else {below(name): label for name, label in rows.labels.items()}
    keys = {below(name): key for name, key in rows.keys.items()}
    metadata = {below(name): values for name, values in rows.metadata.items()}
    return replace(rows, labels=labels, metadata=metadata, keys=keys)


@dataclass(frozen=True)
class KeyedRow:
    """Row of a table that describes items by key. source: the image that it names, or the key."""

    key: str
    source: str
    label: str | None
    metadata: Mapping[str, Any]


def read_keyed_rows(path: Path) -> list[KeyedRow]:
    """Read a CSV file with the column `key`, or else `image` or `path`, whose cells are the keys then; all differ.

    The column `label` holds labels; the others are metadata as in `read_label_file`.

    Raises:
        UsageError: If the file cannot be read, has none of these columns, or a key is missing or occurs twice.
    """
    path = expand(path)
    with _csv_rows(path) as (header, cells):
        rows = list(cells)
    named = [name for name in header if name]
    _check_unique(path, named, sorted(named))
    image = next((name for name in (IMAGE, PATH) if name in named), None)
    column = KEY if KEY in named else image
    if column is None:
        raise UsageError(
            f"{path} needs a header with the column {KEY} (or {IMAGE}); it has: {', '.join(header) or 'nothing'}.",
            code="invalid-table",
        )
    columns = [name for name in named if name not in (KEY, LABEL, image)]
    parse = {name: _cell_parser([row[name] for _, row in rows if row[name]]) for name in columns}
    lines: dict[str, int] = {}
    keyed = []
    for line, row in rows:
        key = row[column]
        if not key:
            raise UsageError(f"{path}, line {line}: a key is needed.", code="invalid-table")
        if (first := lines.setdefault(key, line)) != line:
            raise UsageError(f"{path}, line {line}: line {first} has the key {key!r} too.", code="invalid-table")
        metadata = {name: parse[name](row[name]) for name in columns if row[name]}
        keyed.append(KeyedRow(key, (row[image] if image else "") or key, row.get(LABEL) or None, metadata))
    return keyed


def read_table(path: Path) -> LabelFile:
    """Read a table as `read_label_file` does. It has the column `image`, or else `path`, and needs no other column.

    `metadata` has every image, in the order of the rows.
    """
    return _read_labels(path, lists=True)


def _read_labels(path: Path, lists: bool) -> LabelFile:
    """Read labels and metadata; `lists` means that the file is a table, which lists the images."""
    path = as_text(path)
    with _csv_rows(path) as (header, cells):
        key, columns = _metadata_columns(path, header, lists)
        rows = _metadata_rows(path, cells, key, lists)
    labelled = LABEL in header
    parse = {column: _cell_parser([row[column] for row in rows.values() if row[column]]) for column in columns}
    return LabelFile(
        {source: row[LABEL] or None for source, row in rows.items()} if labelled else None,
        tuple(columns),
        {source: {key: parse[key](row[key]) for key in columns if row[key]} for source, row in rows.items()},
        {source: row[KEY] for source, row in rows.items() if row.get(KEY)},
    )


def _metadata_columns(path: Path, header: list[str], lists: bool) -> tuple[str, list[str]]:
    """Return the header of the image column, and those of the metadata columns."""
    named = [name for name in header if name]  # writers of row numbers leave their column without a name
    key = IMAGE if IMAGE in named else PATH
    if key not in named or (not lists and len(named) < 2):
        columns = f"column {IMAGE} (or {PATH})" + ("" if lists else f", and {LABEL} or metadata")
        raise UsageError(
            f"{path} needs a header with the {columns}; it has: {', '.join(header) or 'nothing'}.",
            code="invalid-table",
        )
    _check_unique(path, named, sorted(named))
    return key, [name for name in named if name not in (key, LABEL, KEY)]


def _metadata_rows(
    path: Path, cells: Iterator[tuple[int, dict[str, Any]]], key: str, lists: bool
) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    lines_by_key: dict[str, int] = {}
    for line, row in cells:
        if row[key] is None or row.get(LABEL, "") is None or (lists and not row[key]):
            named = "an image" if key == IMAGE else "a path"
            raise UsageError(
                f"{path}, line {line}: a row needs {named}{' and a label' * (LABEL in row)}.", code="invalid-table"
            )
        source = Path(row.pop(key)).as_posix()
        if source not in rows and (name := row.get(KEY)) and (first := lines_by_key.setdefault(name, line)) != line:
            raise UsageError(f"{path}, line {line}: line {first} has the key {name!r} too.", code="invalid-table")
        if rows.setdefault(source, row) != row:
            raise UsageError(
                f"{path}, line {line}: {source} has another label or other metadata above.", code="invalid-table"
            )
    return rows


def _cell_parser(cells: list[str]) -> Callable[[str], Any]:
    """Return the function that parses the cells of a column."""
    if all(map(_INTEGER.fullmatch, cells)):
        return int
    if all(map(_DECIMAL.fullmatch, cells)):
        return float
    return _TRUE_OR_FALSE.__getitem__ if _TRUE_OR_FALSE.keys() >= set(cells) else str
