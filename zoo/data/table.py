"""Tables of images: labels, splits, queries and metadata, as CSV, as TSV, or in a format of `zoo.data.formats`.

`load` reads a table as a data set; `read_table` and `read_label_file` read labels and metadata for a gallery;
`read_column` reads one column. Files are UTF-8 with a header; a row with more cells than the header is refused.
"""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from zoo.console import note_once
from zoo.data import formats
from zoo.data.columns import Column, Kind, check_kinds, parse_column
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


Row = Mapping[str, str]


@dataclass(frozen=True)
class _Origin:
    """Names of a table and of its rows in messages: those of the user's file, not of the table written from it.

    Attributes:
        name: The user's path.
        unit: What is counted: lines of a file of text, else rows.
    """

    name: str
    unit: str = "line"

    @classmethod
    def of(cls, path: str | Path, text: Path) -> Self:
        """Return the names for a path, and the file of text that is read for it."""
        if not formats.is_written(text):
            return cls(str(text))
        return cls("the data set in memory" if expand(path) == text else str(path), "row")

    def at(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"


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
    text = as_text(path)
    origin = _Origin.of(path, text)
    if not text.is_file():
        raise DatasetError(f"there is no file {text}.", code="not-found")
    with _csv_rows(text, DatasetError) as (header, cells):
        columns = _table_columns(origin.name, header, labelled)
        rows = [(line, {name: row.get(key) or "" for name, key in columns.items()}) for line, row in cells]
    if not rows:
        raise DatasetError(f"{origin.name} lists no images.", code="no-images")
    if labelled and formats.is_written(text) and not any(row[LABEL] for _, row in rows):
        others = ", ".join(name for name in header if name != LABEL)
        raise UsageError(
            f"{origin.name} has no column of labels with a value; it has: {others}. Name the column of the classes "
            f"{' or '.join(formats.LABELS)}.",
            code="invalid-table",
        )
    _check_image_rows(origin, text, rows, labelled)
    return _in_our_terms(origin.name, [row for _, row in rows])


def _in_our_terms(name: str, rows: list[dict[str, str]]) -> list[Row]:
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
        note_once(f"{Path(name).name}: the rows of the split {VALIDATION} are not used; those of train and test are")
        return [row for row in rows if row[SPLIT] != VALIDATION]
    return [{**row, SPLIT: SPLITS[1] if row[SPLIT] == VALIDATION else row[SPLIT]} for row in rows]


@contextmanager
def _csv_rows(
    path: Path, unreadable: type[ZooError] = UsageError, how: TableFormat | None = None
) -> Iterator[tuple[list[str], Iterator[tuple[int, dict[str, Any]]]]]:
    """Open a CSV file and yield its header and an iterator over (line number, row); see `_Origin.unit`.

    Raises:
        ZooError: The error `unreadable`, if the file cannot be read.
        UsageError: If it is not CSV in the encoding (UTF-8 by default), or a row has more cells than the
            header, perhaps as a comma cut a label.
    """
    how, is_written = how or PLAIN, formats.is_written(path)
    encoding = "utf-8-sig" if codecs.lookup(how.encoding).name == "utf-8" else how.encoding  # files of Excel
    _check_is_text(path)
    delimiter = how.delimiter or formats.TEXTS.get(path.suffix.lower(), ",")
    try:
        with path.open(encoding=encoding, newline="") as file:
            reader = csv.DictReader(file, strict=True, delimiter=delimiter)
            reader.fieldnames = header = [canonical(read_cell(name)) for name in reader.fieldnames or ()]
            if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
                message = (
                    f"{path} separates its columns by {mark!r}: name that with --delimiter, or save it with commas."
                )
                raise UsageError(message, code="invalid-table")

            def rows() -> Iterator[tuple[int, dict[str, Any]]]:
                for number, row in enumerate(reader, 1):
                    if any(row.pop(None, None) or ()):  # csv stores surplus cells under None
                        raise UsageError(
                            f"{path}, line {reader.line_num}: the row has more cells than the header, which has "
                            f"{len(header)}; {delimiter!r} within a cell needs quotation marks around the cell.",
                            code="invalid-table",
                        )
                    place = number if is_written else reader.line_num
                    yield place, {name: cell and _cell(name, cell) for name, cell in row.items()}

            yield header, rows()
    except OSError as error:
        raise unreadable(f"{path} cannot be read: {error.strerror or error}.", code="unreadable-file") from None
    except (UnicodeError, csv.Error) as error:
        message = f"{path} cannot be read as CSV in {how.encoding}: {error}. Name another encoding with --encoding."
        raise UsageError(message, code="invalid-table") from None


_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
_BINARY = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""Beginning of spreadsheets: of archives, as Excel and LibreOffice write them, and of Excel's older files."""


def _check_is_text(path: Path) -> None:
    """Raise `UsageError` for a spreadsheet. Of a file that cannot be read the caller says why."""
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
    except OSError:
        return
    if path.suffix.lower() in _SPREADSHEETS or beginning in _BINARY:
        message = f"{path} is a spreadsheet and not a text: save it as CSV (UTF-8), and name that."
        raise UsageError(message, code="invalid-table")


def _cell(name: str, cell: str) -> str:
    """Return a cell of a column. The name of a file stays unchanged; other texts are equal if they look the same."""
    return read_cell(cell) if name in (IMAGE, PATH) else canonical(read_cell(cell))


def _table_columns(path: str | Path, header: list[str], labelled: bool) -> dict[str, str]:
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


def _check_unique(path: str | Path, header: list[str], names: Iterable[str]) -> None:
    for name in names:
        if header.count(name) > 1:
            raise UsageError(f"{path} has the column {name} more than once.", code="invalid-table")


def _check_image_rows(origin: _Origin, path: Path, rows: list[tuple[int, dict[str, str]]], labelled: bool) -> None:
    seen: set[str] = set()
    places = image_paths(path, [row[IMAGE] for _, row in rows])
    for (line, row), image in zip(rows, places, strict=True):
        at = origin.at(line)
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
class TableFormat:
    """Form of the cells of a table, where its suffix does not tell.

    Attributes:
        delimiter: What separates them; None: a comma, or a tab in a .tsv.
        encoding: Python's name of the encoding.
        kinds: Kinds of columns (`zoo.data.columns.KINDS`) by name; the others are guessed.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"
    kinds: Mapping[str, Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(self.delimiter) != 1:
            message = f"a delimiter is one character, not {self.delimiter!r}; for a tab in a shell: $'\\t'."
            raise UsageError(message, code="invalid-value")
        try:
            "".encode(self.encoding)
        except LookupError:
            message = f"there is no encoding {self.encoding!r}; common ones are utf-8, cp1252, utf-16."
            raise UsageError(message, code="unknown-name") from None


PLAIN = TableFormat()


@dataclass(frozen=True)
class LabelRow:
    """Row of a table of images.

    Attributes:
        path: Path of the image, below the folder or relative to the table.
        label: Its label; None for an empty cell.
        metadata: The other cells that are not empty.
        key: The user's own name of it; several rows with different keys may have one image.
    """

    path: str
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True)
class LabelFile:
    """Labels and metadata of images.

    Attributes:
        rows: The rows in order.
        labelled: Whether there is a column `label`; without it folders' names stay the labels.
        columns: Columns of the metadata.
    """

    rows: tuple[LabelRow, ...] = ()
    labelled: bool = False
    columns: tuple[Column, ...] = ()


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


def read_label_file(
    path: Path, sources: Collection[str] = (), folder: Path | None = None, how: TableFormat = PLAIN
) -> LabelFile:
    """Read a CSV file with the column `image`, or else `path`, and at least one more.

    The column `label` holds labels, and `key` the users' own names of images, as texts; every other named column is a
    key of the metadata, whose values are numbers, truth values or texts (`zoo.data.columns`).

    Args:
        path: The file.
        sources: The paths of the images below `folder`.
        folder: The folder of the images. The name of an image that is not among `sources` is relative to the file's
            folder, as in a table.
        how: How the cells are written.

    Raises:
        UsageError: If the file cannot be read or is malformed; the message names the line.
    """
    file = _read_labels(path, lists=False, how=how)
    if folder is None:
        return file
    root, names, finder = expand(folder), Paths(sources), FileFinder()

    def below(name: str) -> str:
        if (source := names.find(name)) is not None:
            return source
        image = finder.find(expand(path).parent, name)
        with suppress(ValueError):  # a null byte, which is in no file's name
            for real in (os.path.abspath, os.path.realpath):  # a link within the folder has its own name
                if (file := Path(real(image))).is_relative_to(real(root)):
                    return escaped(file.relative_to(real(root)).as_posix())
        return name

    return replace(file, rows=tuple(replace(row, path=below(row.path)) for row in file.rows))


@dataclass(frozen=True)
class KeyedRow:
    """Row of a table that describes items by key. source: the image that it names, or the key."""

    key: str
    source: str
    label: str | None
    metadata: Mapping[str, Any]


def read_keyed_rows(path: Path, how: TableFormat = PLAIN) -> tuple[list[KeyedRow], tuple[Column, ...]]:
    """Read a CSV file with the column `key`, or else `image` or `path`, whose cells are the keys then; all differ.

    The column `label` holds labels; the others are metadata as in `read_label_file`. Return the rows and these columns.

    Raises:
        UsageError: If the file cannot be read, has none of these columns, or a key is missing or occurs twice.
    """
    path = expand(path)
    with _csv_rows(path, how=how) as (header, cells):
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
    names = [name for name in named if name not in (KEY, LABEL, image)]
    columns, metadata = _parsed_metadata(names, rows, how)
    lines: dict[str, int] = {}
    keyed = []
    for line, row in rows:
        key = row[column]
        if not key:
            raise UsageError(f"{path}, line {line}: a key is needed.", code="invalid-table")
        if (first := lines.setdefault(key, line)) != line:
            raise UsageError(f"{path}, line {line}: line {first} has the key {key!r} too.", code="invalid-table")
        source = (row[image] if image else "") or key
        keyed.append(KeyedRow(key, source, row.get(LABEL) or None, metadata[line]))
    return keyed, columns


def read_table(path: Path, how: TableFormat = PLAIN) -> LabelFile:
    """Read a table as `read_label_file` does. It has the column `image`, or else `path`, and needs no other column."""
    return _read_labels(path, lists=True, how=how)


def _read_labels(path: Path, lists: bool, how: TableFormat) -> LabelFile:
    """Read labels and metadata; `lists` means that the file is a table, which lists the images."""
    text = as_text(path)
    origin = _Origin.of(path, text)
    with _csv_rows(text, how=how) as (header, cells):
        image, names = _metadata_columns(origin.name, header, lists)
        rows = _metadata_rows(origin, cells, image, lists)
    columns, metadata = _parsed_metadata(names, rows, how)
    labelled = [
        LabelRow(row[image], row.get(LABEL) or None, metadata[line], row.get(KEY) or None) for line, row in rows
    ]
    return LabelFile(tuple(labelled), LABEL in header, columns)


def _parsed_metadata(
    names: Sequence[str], rows: Sequence[tuple[int, Row]], how: TableFormat
) -> tuple[tuple[Column, ...], dict[int, dict[str, Any]]]:
    """Return the columns of metadata, and the metadata of each row by its line."""
    check_kinds(how.kinds, names)
    columns: list[Column] = []
    metadata: dict[int, dict[str, Any]] = {line: {} for line, _ in rows}
    for name in names:
        cells = [(line, row[name]) for line, row in rows if row[name]]
        column, values = parse_column(name, cells, how.kinds.get(name))
        columns.append(column)
        for line, value in values.items():
            metadata[line][name] = value
    return tuple(columns), metadata


def _metadata_columns(path: str, header: list[str], lists: bool) -> tuple[str, list[str]]:
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
    origin: _Origin, cells: Iterator[tuple[int, dict[str, Any]]], image: str, lists: bool
) -> list[tuple[int, dict[str, str]]]:
    """Return line and cells of each row. An image has several rows only if each of them has a key of its own."""
    rows: list[tuple[int, dict[str, str]]] = []
    by_name: dict[tuple[str, str], dict[str, str]] = {}
    keyed: dict[str, bool] = {}
    lines_by_key: dict[str, int] = {}
    for line, row in cells:
        if row[image] is None or row.get(LABEL, "") is None or (lists and not row[image]):
            named = "an image" if image == IMAGE else "a path"
            raise UsageError(
                f"{origin.at(line)}: a row needs {named}{' and a label' * (LABEL in row)}.", code="invalid-table"
            )
        row[image] = source = Path(row[image]).as_posix()
        key = row.get(KEY) or ""
        if by_name.setdefault((source, key), row) is not row:
            if by_name[source, key] == row:
                continue
            raise UsageError(
                f"{origin.at(line)}: {source} has another label or other metadata above.", code="invalid-table"
            )
        if keyed.setdefault(source, bool(key)) != bool(key):
            message = f"{origin.at(line)}: {source} has a row above; of several rows each needs a key of its own."
            raise UsageError(message, code="invalid-table")
        if key and (first := lines_by_key.setdefault(key, line)) != line:
            raise UsageError(f"{origin.at(line)}: {origin.unit} {first} has the key {key!r} too.", code="invalid-table")
        rows.append((line, row))
    return rows
