"""Embeddings and labels as every metric takes them: unit rows, and a number for each class."""

from __future__ import annotations

import math
import os
import tempfile
from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.knn import as_rows, is_memory_mapped
from zoo.evaluation.matmul import row_norms

MEMORY_LIMIT = 256 * 2**20
"""How many bytes of unit rows are held in memory though the embeddings are mapped."""


class RetrievalInputs(NamedTuple):
    """Queries and the gallery that they search.

    gallery: float32 [n, d] and queries: float32 [q, d], unit rows; codes: int64 [n] and query_codes: int64 [q], a
    number for each row's class; relatives: int64 [q], how many gallery rows share the query's class, the query itself
    aside; leave_one_out: the queries are the gallery, and each is left out of its own neighbours by index.
    """

    gallery: np.ndarray
    queries: np.ndarray
    codes: np.ndarray
    query_codes: np.ndarray
    relatives: np.ndarray
    leave_one_out: bool


def retrieval_inputs(embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None) -> RetrievalInputs:
    """Check and number what `retrieval_metrics` takes. Raises `EvaluationError` where no query has a relative, too."""
    if (queries is None) != (query_labels is None):
        raise EvaluationError("queries and query_labels belong together; give both or neither.")
    leave_one_out = queries is None
    gallery = unit_rows(embeddings)
    searched = gallery if leave_one_out else unit_rows(queries, "queries")
    codes, query_codes = class_codes(labels, len(gallery), query_labels, len(searched))
    relatives = _count_relatives(codes, query_codes, leave_one_out)
    return RetrievalInputs(gallery, searched, codes, query_codes, relatives, leave_one_out)


def unit_rows(values: Any, name: str = "embeddings") -> np.ndarray:
    """`values` [n, d] scaled to unit length: a float32 copy. Of a large memory-mapped array (`np.memmap`) it is mapped
    too, to a file without a name in the folder for temporary files, as float32 rows may be more than the memory holds.

    Raises `EvaluationError` for what `as_rows` refuses, for a row that is all zero, which has no direction, and where
    the disk has no room for that file.
    """
    rows = as_rows(values, name)
    norms = row_norms(rows)
    if not norms.all():
        raise EvaluationError(f"row {int(norms.argmin())} of {name} is all zero and has no direction; drop it.")
    room = (
        _temporary_map(rows.shape)
        if is_memory_mapped(values) and rows.nbytes > MEMORY_LIMIT
        else np.empty_like(rows, subok=False)
    )
    unit: np.ndarray = np.divide(rows, norms[:, None], out=room, dtype=np.float64, casting="same_kind")
    return unit


def _temporary_map(shape: tuple[int, ...]) -> np.ndarray:
    size = 4 * math.prod(shape)
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process later
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise EvaluationError(
            f"the folder for temporary files has no room for {size:,} bytes ({error.strerror}), the unit rows of "
            "mapped embeddings; set TMPDIR to a folder that has."
        ) from None


def class_codes(labels: Any, n: int, query_labels: Any = None, q: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One number for each class, from 0: int64 [n] for the gallery and [q] for the queries.

    Without query_labels the queries are the gallery. Raises `EvaluationError` for labels that are neither integers nor
    strings, that do not fit the rows, or of two kinds.
    """
    gallery = as_labels(labels, n, "labels")
    if query_labels is None:
        codes = np.unique(gallery, return_inverse=True)[1]
        return codes, codes
    asked = as_labels(query_labels, q, "query_labels")
    if n and q and (gallery.dtype.kind == "U") != (asked.dtype.kind == "U"):
        raise EvaluationError(
            f"labels are {gallery.dtype} and query_labels {asked.dtype}; both must be integers or both strings."
        )
    codes = np.unique(np.concatenate([gallery, asked]), return_inverse=True)[1]
    return codes[:n], codes[n:]


def rows_by_class(codes: np.ndarray) -> list[np.ndarray]:
    """The rows of each class, ascending, from the class of code 0 on: int64 arrays."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def as_labels(labels: Any, n: int, name: str = "labels") -> np.ndarray:
    """Labels as an array [n] of integers or strings. Raises `EvaluationError` as `class_codes` does."""
    values = np.asarray(labels)
    if not values.size and values.dtype.kind == "f":
        values = values.astype(np.int64)  # an empty list: that there is nothing is said elsewhere
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        values = values.astype(str)
    if values.dtype.kind not in "iubU":
        raise EvaluationError(f"{name} must be integers or strings, not {values.dtype}.")
    if values.shape != (n,):
        raise EvaluationError(f"{name} must be one for each of the {n} rows, not of shape {list(values.shape)}.")
    return values


def _count_relatives(codes: np.ndarray, query_codes: np.ndarray, leave_one_out: bool) -> np.ndarray:
    """How many gallery rows share each query's class, the query itself aside: int64 [q]."""
    if len(codes) == 0 or len(query_codes) == 0:
        raise EvaluationError("there is nothing to measure: the embeddings or the queries have no rows.")
    sizes = np.bincount(codes, minlength=int(query_codes.max()) + 1)
    relatives: np.ndarray = sizes[query_codes] - int(leave_one_out)
    if not relatives.any():
        raise EvaluationError(
            "no query has a relative in the gallery; retrieval is measured where a class has at least two samples."
        )
    return relatives
