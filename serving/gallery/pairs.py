"""Marked results as pairs to train on, in one file: CSV (UTF-8, with a header) or Parquet, by the file's name.

query_source, query_sha256    the image that was searched by: where it came from, and the SHA-256 of its file
query_item, query_label       the item that it is and its label; empty where it is none, or has none
result_source, result_sha256, result_item, result_label    the same of the result
same                          1 where the result was marked right, of the query's class; 0 where it was marked wrong
similarity                    the cosine of the two when it was marked, -1 to 1
model                         the fingerprint of the model that measured it
marked_at                     UTC, ISO 8601
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serving.gallery.gallery import Gallery
from serving.gallery.marks import Mark
from zoo.errors import UsageError, missing
from zoo.files import atomic_path

_COLUMNS: dict[str, tuple[str, Callable[[Mark], Any]]] = {
    "query_source": ("string", lambda mark: mark.query_source),
    "query_sha256": ("string", lambda mark: mark.query),
    "query_item": ("int64", lambda mark: mark.query_item),
    "query_label": ("string", lambda mark: mark.query_label),
    "result_source": ("string", lambda mark: mark.source),
    "result_sha256": ("string", lambda mark: mark.content_sha256),
    "result_item": ("int64", lambda mark: mark.item),
    "result_label": ("string", lambda mark: mark.label),
    "same": ("int8", lambda mark: int(mark.same)),
    "similarity": ("float64", lambda mark: mark.similarity),
    "model": ("string", lambda mark: mark.model),
    "marked_at": ("string", lambda mark: mark.marked_at),
}
"""Of each column its Arrow type, and what it holds of a mark."""


def check_file(file: Path, replace: bool) -> None:
    """Raise `UsageError` for a name that pairs are not written to, and for a file that is there, unless `replace`."""
    _writer(file)
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name the file in it.")
    if file.exists() and not replace:
        raise UsageError(f"{file} is there already. Name another file, or write over it with --replace.")


def export_pairs(gallery: Gallery, file: Path) -> int:
    """Write all marks to `file`, whose name ends in .csv or .parquet; how many there are."""
    write = _writer(file)
    try:
        with atomic_path(file) as made:
            return write(made, ([value(mark) for _, value in _COLUMNS.values()] for mark in gallery.marks.all()))
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}.") from None


def _writer(file: Path) -> Callable[[Path, Iterator[list[Any]]], int]:
    write = {".csv": _write_csv, ".parquet": _write_parquet}.get(file.suffix.lower())
    if write is None:
        raise UsageError(f"{file}: pairs are written as .csv or as .parquet.")
    return write


def _write_csv(file: Path, rows: Iterator[list[Any]]) -> int:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(_COLUMNS)
        return sum(1 for row in rows if writer.writerow(row))


def _write_parquet(file: Path, rows: Iterator[list[Any]]) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    schema = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
    table = pa.Table.from_pylist([dict(zip(_COLUMNS, row, strict=True)) for row in rows], schema)
    parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)
