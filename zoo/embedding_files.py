"""Embeddings and labels in files that other programs write, too."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import TextIO

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from zoo.datasets.table import TRUTH
from zoo.errors import UsageError
from zoo.files import atomic_path

EMBEDDINGS, LABELS = "embeddings", "labels"
"""The names of tensors."""
_LABEL, _QUERY = "label", "query"
"""The names of columns."""


def read_embeddings(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of .npy, memory-mapped, or of .safetensors; and labels, where tensors beside them are so called.

    Raises `UsageError` for a file that is not there or is neither; what the rows hold is for who measures them.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _read_npy(path), None
    if suffix != ".safetensors":
        raise UsageError(f"embeddings are in a .npy or a .safetensors file, not in {path}.")
    tensors = _read_tensors(path)
    if EMBEDDINGS not in tensors:
        raise UsageError(f"{path} has no tensor {EMBEDDINGS!r}; it has {', '.join(sorted(tensors)) or 'none'}.")
    return tensors[EMBEDDINGS], tensors.get(LABELS)


def read_labels(path: Path) -> np.ndarray:
    """A label a row, of .npy, of the column `label` of .csv, or of any other text in UTF-8, a label a line: [n].

    Raises `UsageError` for a file that is not there or not so, and for an empty label.
    """
    if path.suffix.lower() == ".npy":
        return _read_npy(path)
    labels = _texts(path, _LABEL)
    if "" in labels:
        raise UsageError(f"{path}: label {labels.index('') + 1} of {len(labels)} is empty; each row needs one.")
    return np.array(labels, dtype=np.str_)


def read_queries(path: Path) -> np.ndarray:
    """Which rows search, 1 or true of each that does, 0 or false of the others: bool [n].

    From .npy, from the column `query` of .csv, or from any other text in UTF-8, a line a row. Raises `UsageError` for a
    file that is not there or not so.
    """
    if path.suffix.lower() == ".npy":
        values = _read_npy(path)
        told = values if values.dtype.kind in "biu" and np.isin(values, (0, 1)).all() else None
    else:
        words = [TRUTH.get(text.strip().lower()) for text in _texts(path, _QUERY)]
        told = None if None in words else np.array(words)
    if told is None:
        raise UsageError(f"{path} is to say of each row whether it searches: 1 or true, 0 or false.")
    return told.astype(np.bool_)


def _texts(path: Path, column: str) -> list[str]:
    """A text a row, of a column of .csv or the lines of any other file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _column(path, file, column) if path.suffix.lower() == ".csv" else file.read().splitlines()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, str(error)) from None


def table_of(path: Path) -> Path:
    """Where the names and labels of the rows in a .npy file are written. Raises `UsageError` for another file."""
    if path.suffix != ".npy":
        raise UsageError(f"embeddings are written to a .npy file, not to {path}.")
    return path.with_suffix(".csv")


def check_free(path: Path) -> None:
    """Raise `UsageError` where the rows' file, or the table beside it, is there already."""
    for taken in (path, table_of(path)):
        if taken.exists():
            raise UsageError(f"{taken} exists already; name another --out, or give --replace.")


def write_embeddings(path: Path, rows: np.ndarray, about: Sequence[Mapping[str, str]]) -> None:
    """Rows [n, d] as .npy, and `table_of` it: what is to be said of each, the same columns of all.

    With path and label the table is one that `zoo index --labels` reads. What is no UTF-8 in it is a question mark.
    """
    with atomic_path(path) as there, there.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
    with atomic_path(table_of(path)) as there, there.open("w", encoding="utf-8", errors="replace", newline="") as file:
        table = csv.DictWriter(file, list(about[0]))
        table.writeheader()
        table.writerows(about)


def _column(path: Path, file: TextIO, name: str) -> list[str]:
    reader = csv.DictReader(file)
    if name not in (reader.fieldnames or ()):
        raise UsageError(f"{path} lacks the column {name}; it has {', '.join(reader.fieldnames or ()) or 'none'}.")
    return [row[name] or "" for row in reader]


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise _unreadable(path, "it is no .npy file")
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, OverflowError, SyntaxError, TokenError, EOFError) as error:  # of Python objects, or damaged
        raise _unreadable(path, str(error)) from None
    return found


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:  # damaged, or of a dtype that NumPy has not
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {why.rstrip('.')}.")
