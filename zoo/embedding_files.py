"""Embeddings and labels in files that other programs write, too."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, NamedTuple, TextIO

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from zoo.data.table import LABEL, PATH, QUERY, TRUTH
from zoo.embedding_records import (
    EmbeddingRecord,
    from_metadata,
    made_by,
    read_record,
    record_of,
    to_metadata,
    write_record,
)
from zoo.errors import UsageError
from zoo.files import atomic_path

if TYPE_CHECKING:
    from zoo.models.load import Embedder


EMBEDDINGS, LABELS = "embeddings", "labels"
"""The names of tensors."""
_NPY, _TENSORS = ".npy", ".safetensors"


class Embeddings(NamedTuple):
    """rows: [n, d]; labels: [n], of a tensor beside them; record: of what made them. None where the file has none."""

    rows: np.ndarray
    labels: np.ndarray | None
    record: EmbeddingRecord | None


def read_embeddings(path: Path) -> Embeddings:
    """Rows of .npy, memory-mapped, or of .safetensors; what the latter holds as labels; and the record of either.

    Raises `UsageError` for a file that is not there or is neither, and for rows that are not those of their record;
    what the rows hold is for who measures them.
    """
    found = Embeddings(_read_npy(path), None, read_record(path)) if _kind(path) == _NPY else _read_tensors(path)
    if found.record is not None:
        found.record.check_rows(path, found.rows)
    return found


def _kind(path: Path) -> str:
    if (suffix := path.suffix.lower()) not in (_NPY, _TENSORS):
        raise UsageError(f"embeddings are in a {_NPY} or a {_TENSORS} file, not in {path}.")
    return suffix


def read_labels(path: Path) -> np.ndarray:
    """A label a row, of .npy, of the column `label` of .csv, or of any other text in UTF-8, a label a line: [n].

    Raises `UsageError` for a file that is not there or not so, and for an empty label.
    """
    if path.suffix.lower() == _NPY:
        return _read_npy(path)
    labels = _texts(path, LABEL)
    if "" in labels:
        raise UsageError(f"{path}: label {labels.index('') + 1} of {len(labels)} is empty; each row needs one.")
    return np.array(labels, dtype=np.str_)


def read_queries(path: Path) -> np.ndarray:
    """Which rows search, 1 or true of each that does, 0 or false of the others: bool [n].

    From .npy, from the column `query` of .csv, or from any other text in UTF-8, a line a row. Raises `UsageError` for a
    file that is not there or not so.
    """
    expected = f"{path} is to say of each row whether it searches: 1 or true, 0 or false"
    if path.suffix.lower() == _NPY:
        values = _read_npy(path)
        if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
            raise UsageError(f"{expected}.")
        return values.astype(np.bool_)
    texts = _texts(path, QUERY)
    told = [TRUTH.get(text.strip().lower()) for text in texts]
    if None in told:
        place = told.index(None)
        raise UsageError(f"{expected}; row {place + 1} of {len(told)} says {texts[place][:40]!r}.")
    return np.array(told, np.bool_)


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
    """Where the names and labels of a file's rows are written."""
    return path.with_suffix(".csv")


def check_table(embeddings: Path, record: EmbeddingRecord, table: Path) -> None:
    """Raise `UsageError` where `table` is the one beside the rows and names other images than the record's."""
    if table.resolve() == table_of(embeddings).resolve() and (names := _paths(table)) is not None:
        record.check_images(table, names)


def _paths(table: Path) -> list[str] | None:
    """The column path; None of a table that has none, which is not as it was written."""
    try:
        return _texts(table, PATH)
    except UsageError:
        return None


def written_with(path: Path) -> list[Path]:
    """The files that rows are written to: `path`, the table beside it, and of .npy the record.

    Raises `UsageError` for another kind of file.
    """
    return [path, table_of(path), *([record_of(path)] if _kind(path) == _NPY else [])]


def check_free(path: Path) -> None:
    """Raise `UsageError` where one of the files that rows are written to is there already."""
    for taken in written_with(path):
        if taken.exists():
            raise UsageError(f"{taken} exists already; name another --out, or give --replace.")


def write_embeddings(path: Path, rows: np.ndarray, about: Sequence[Mapping[str, str]], model: Embedder) -> None:
    """Rows, float32 [n, d], that the model gave, as .npy or .safetensors, with the record of that and `table_of` them.

    about: of each image its path and label, "" for none, and whatever else the table is to say, the same of all; it is
    one that `zoo index --labels` reads. What is no UTF-8 in it is a question mark. A .safetensors file has the tensor
    labels too, int64 [n], where all images have one; the metadata name the classes.
    """
    record = made_by(model, rows, [said[PATH] for said in about])
    with atomic_path(path) as there:
        if _kind(path) == _NPY:
            with there.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
        else:
            _write_tensors(there, rows, [said[LABEL] for said in about], record)
    with atomic_path(table_of(path)) as there, there.open("w", encoding="utf-8", errors="replace", newline="") as file:
        table = csv.DictWriter(file, list(about[0]))
        table.writeheader()
        table.writerows(about)
    if _kind(path) == _NPY:
        write_record(path, record)


def _write_tensors(path: Path, rows: np.ndarray, labels: Sequence[str], record: EmbeddingRecord) -> None:
    from safetensors.numpy import save_file

    tensors, metadata = {EMBEDDINGS: np.ascontiguousarray(rows)}, to_metadata(record)
    if "" not in labels:
        classes, codes = np.unique(np.array(labels), return_inverse=True)
        tensors[LABELS], metadata["classes"] = codes.astype(np.int64), json.dumps(classes.tolist())
    save_file(tensors, path, metadata)


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
    except (ValueError, OverflowError, SyntaxError, TokenError, EOFError) as error:
        raise _unreadable(path, str(error) if "Python objects" in str(error) else _damaged_file(error)) from None
    return found


def _read_tensors(path: Path) -> Embeddings:
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except SafetensorError as error:
        raise _unreadable(path, _damaged_file(error)) from None
    except (KeyError, TypeError, AttributeError) as error:  # of a dtype that NumPy has not
        raise _unreadable(path, str(error)) from None
    if EMBEDDINGS not in tensors:
        raise UsageError(f"{path} has no tensor {EMBEDDINGS!r}; it has {', '.join(sorted(tensors)) or 'none'}.")
    return Embeddings(tensors[EMBEDDINGS], tensors.get(LABELS), from_metadata(metadata, path))


def _damaged_file(error: Exception) -> str:
    return f"it is damaged or was cut off ({str(error).rstrip('.')}). Make or copy it again"


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {why.rstrip('.')}.")
