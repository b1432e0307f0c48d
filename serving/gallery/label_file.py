"""The CSV file that says of images what their folders do not: labels, and metadata in its further columns.

It stands beside a folder, or in place of one as a table (`zoo.datasets.table`) that lists the images itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.datasets.table import IMAGE, LABEL, PATH, check_cells
from zoo.errors import UsageError

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,30})?")
"""As many digits as 64 bits, whole or floating, hold of every number: longer ones name things."""
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class LabelFile:
    """What the file says, by the image's path below the folder, or as a table names it.

    metadata: of every path, without empty cells; columns: its keys. labels: of every path, None for an empty cell;
    None without a column `label`, where the folders' names stay.
    """

    labels: Mapping[str, str | None] | None = None
    columns: tuple[str, ...] = ()
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_label_file(path: Path) -> LabelFile:
    """Read a UTF-8 CSV file whose header names `path` and one more column at least.

    The column `label` holds labels; every other one that has a name is a key of the metadata. Its cells are numbers
    where all of them are written as numbers (00123 is not), true and false where all are that, and else texts.
    Raises `UsageError` that names the line.
    """
    return _read(path, lists=False)


def read_table(path: Path) -> LabelFile:
    """Read a table: as `read_label_file`, with the column `image`, or `path` where it has none, which may stand alone.

    `metadata` has every image, in the order of the rows.
    """
    return _read(path, lists=True)


def _read(path: Path, lists: bool) -> LabelFile:
    """lists: it is a table, which lists the images."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            key, columns = _columns(path, list(reader.fieldnames or ()), lists)
            rows = _rows(path, reader, key, lists)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV: {error}.") from None
    labelled = LABEL in (reader.fieldnames or ())
    read = {column: _kind([row[column] for row in rows.values() if row[column]]) for column in columns}
    return LabelFile(
        {source: row[LABEL] or None for source, row in rows.items()} if labelled else None,
        tuple(columns),
        {source: {key: read[key](row[key]) for key in columns if row[key]} for source, row in rows.items()},
    )


def _columns(path: Path, names: list[str], lists: bool) -> tuple[str, list[str]]:
    """The header's name of the images, and those of metadata."""
    named = [name for name in names if name]  # what writes row numbers leaves their column without a name
    key = IMAGE if lists and IMAGE in named else PATH
    if key not in named or (not lists and len(named) < 2):
        columns = "column image (or path)" if lists else "columns path and label, or path and metadata"
        raise UsageError(f"{path} needs a header with the {columns}; it has: {', '.join(names) or 'nothing'}.")
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(f"{path} has the column {twice[0]} more than once.")
    return key, [name for name in named if name not in (key, LABEL)]


def _rows(path: Path, reader: csv.DictReader[str], key: str, lists: bool) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for row in reader:
        check_cells(path, reader, row)
        row.pop(None, None)  # further cells, all of them empty
        if row[key] is None or row.get(LABEL, "") is None or (lists and not row[key]):
            named = "an image" if key == IMAGE else "a path"
            raise UsageError(f"{path}, line {reader.line_num}: a row needs {named}{' and a label' * (LABEL in row)}.")
        source = Path(row.pop(key)).as_posix()
        if rows.setdefault(source, row) != row:
            raise UsageError(f"{path}, line {reader.line_num}: {source} has another label or other metadata above.")
    return rows


def _kind(cells: list[str]) -> Callable[[str], Any]:
    """What reads the cells of a column."""
    if all(map(_WHOLE.fullmatch, cells)):
        return int
    if all(map(_DECIMAL.fullmatch, cells)):
        return float
    return _TRUTH.__getitem__ if _TRUTH.keys() >= set(cells) else str
