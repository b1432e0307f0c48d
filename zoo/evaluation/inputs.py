"""Checked inputs of the metrics: unit rows, class codes, queries and their relatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.knn import as_rows, check_finite, check_matrix, is_memory_mapped
from zoo.evaluation.matmul import row_norms
from zoo.evaluation.memory import (
    BoundedRows,
    Budget,
    bounded_rows,
    release,
    release_pages,
    search_budget,
    temporary_map,
)

MEMORY_LIMIT = 256 * 2**20
"""The largest size of unit rows, in bytes, that stay in memory although the embeddings are memory-mapped."""

_BLOCK_NUMBERS = 2**20


class RetrievalInputs(NamedTuple):
    """Queries and the gallery that they search.

    gallery: Unit rows, float32 [n, d].
    queries: Unit rows, float32 [q, d].
    codes: Class number of each gallery row, int64 [n].
    query_codes: Class number of each query, int64 [q].
    relatives: Number of gallery rows of each query's class, without the query itself, int64 [q].
    leave_one_out: The queries are the gallery, and each is left out of its own neighbours by index.
    """

    gallery: np.ndarray
    queries: np.ndarray
    codes: np.ndarray
    query_codes: np.ndarray
    relatives: np.ndarray
    leave_one_out: bool


def retrieval_inputs(embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None) -> RetrievalInputs:
    """Check the arguments of `retrieval_metrics`, scale the rows to unit length and number the classes.

    Args:
        embeddings: The gallery, [n, d].
        labels: Classes of the gallery, n integers or strings.
        queries: The queries, [q, d]; by default each row of the gallery searches all others.
        query_labels: Classes of the queries, q integers or strings; given together with `queries`.

    Returns:
        The checked inputs.

    Raises:
        EvaluationError: As `unit_rows` and `class_codes`, and where no query has a relative.
    """
    if (queries is None) != (query_labels is None):
        raise EvaluationError("queries and query_labels belong together; give both or neither.", code="missing-value")
    leave_one_out = queries is None
    gallery = unit_rows(embeddings)
    query_rows = gallery if leave_one_out else unit_rows(queries, "queries")
    codes, query_codes = class_codes(labels, len(gallery), query_labels, len(query_rows))
    relatives = _count_relatives(codes, query_codes, leave_one_out)
    return RetrievalInputs(gallery, query_rows, codes, query_codes, relatives, leave_one_out)


def unit_rows(values: Any, name: str = "embeddings") -> np.ndarray:
    """Return `values` [n, d] scaled to unit length, a float32 copy.

    The copy of a large memory-mapped array (`np.memmap`) is mapped too, to an unnamed temporary file, because float32
    rows may exceed the memory.

    Raises:
        EvaluationError: As `as_rows`, and for a row that is all zero (it has no direction) and a full disk.
    """
    if search_budget(values) is not None:
        return values
    rows = as_rows(values, name)
    norms = np.concatenate([row_norms(rows[part]) for part in _parts(*rows.shape)] or [np.empty(0)])
    _check_directions(norms, name)
    mapped = is_memory_mapped(values) and rows.nbytes > MEMORY_LIMIT
    out = temporary_map(rows.shape) if mapped else np.empty_like(rows, subok=False)
    unit: np.ndarray = np.divide(rows, norms[:, None], out=out, dtype=np.float64, casting="same_kind")
    return unit


def bounded_unit_rows(values: Any, budget: Budget, chosen: np.ndarray | None = None) -> BoundedRows:
    """Return the `unit_rows` of embeddings in a temporary file, with one block of rows in memory at a time.

    Args:
        values: [n, d].
        budget: The memory of a search among the rows.
        chosen: Bool [n], the rows to take; by default all.

    Raises:
        EvaluationError: As `unit_rows`.
    """
    rows = check_matrix(values, "embeddings")
    numbers = np.arange(len(rows)) if chosen is None else np.flatnonzero(chosen)
    out = bounded_rows((len(numbers), rows.shape[1]), budget)
    finite, norms = np.empty(len(numbers), np.bool_), np.empty(len(numbers))
    for part in _parts(*out.shape):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # reported below
            block = np.ascontiguousarray(rows[numbers[part]], np.float32)
            finite[part], norms[part] = np.isfinite(block).all(axis=1), row_norms(block)
            np.divide(block, norms[part, None], out=out[part], dtype=np.float64, casting="same_kind")
        release_pages(values)
        release(out[part])
    check_finite(finite, "embeddings", rows, numbers)
    _check_directions(norms, "embeddings")
    return out


def _parts(n: int, dim: int) -> list[slice]:
    step = max(1, _BLOCK_NUMBERS // dim)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _check_directions(norms: np.ndarray, name: str) -> None:
    if not norms.all():
        raise EvaluationError(
            f"row {int(norms.argmin())} of {name} is all zero as float32 and has no direction; drop or scale it.",
            code="invalid-embedding",
        )


def class_codes(labels: Any, n: int, query_labels: Any = None, q: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Number the classes from 0.

    Args:
        labels: The labels of the n gallery rows, integers or strings.
        n: The number of gallery rows.
        query_labels: The labels of the q queries; without them the queries are the gallery.
        q: The number of queries.

    Returns:
        The class numbers int64 [n] of the gallery and int64 [q] of the queries.

    Raises:
        EvaluationError: If labels are neither integers nor strings, of two kinds, or their number is not that of the
            rows.
    """
    gallery = as_labels(labels, n, "labels")
    if query_labels is None:
        codes = np.unique(gallery, return_inverse=True)[1]
        return codes, codes
    queries = as_labels(query_labels, q, "query_labels")
    if n and q and (gallery.dtype.kind == "U") != (queries.dtype.kind == "U"):
        raise EvaluationError(
            f"labels are {gallery.dtype} and query_labels {queries.dtype}; both must be integers or both strings.",
            code="invalid-labels",
        )
    both = [gallery, queries]
    if np.result_type(*both).kind == "f":  # int64 and uint64: as floats, large labels would be equal
        both = [labels.astype(str) for labels in both]
    codes = np.unique(np.concatenate(both), return_inverse=True)[1]
    return codes[:n], codes[n:]


def rows_by_class(codes: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each class, ascending, in the order of the codes: int64 arrays."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def as_labels(labels: Any, n: int, name: str = "labels") -> np.ndarray:
    """Return labels as an array [n] of integers or strings; errors are those of `class_codes`."""
    values = np.asarray(labels)
    if not values.size and values.dtype.kind == "f":
        values = values.astype(np.int64)  # an empty list; the lack of rows is reported elsewhere
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        values = values.astype(str)
    if values.dtype.kind not in "iubU":
        raise EvaluationError(f"{name} must be integers or strings, not {values.dtype}.", code="invalid-labels")
    if values.shape != (n,):
        raise EvaluationError(
            f"{name} must be one for each of the {n} rows, not of shape {list(values.shape)}.", code="invalid-labels"
        )
    return values


def _count_relatives(codes: np.ndarray, query_codes: np.ndarray, leave_one_out: bool) -> np.ndarray:
    """Return how many gallery rows share each query's class, without the query itself: int64 [q]."""
    if len(codes) == 0 or len(query_codes) == 0:
        raise EvaluationError(
            "there is nothing to measure: the embeddings or the queries have no rows.", code="too-few-samples"
        )
    sizes = np.bincount(codes, minlength=int(query_codes.max()) + 1)
    relatives: np.ndarray = sizes[query_codes] - int(leave_one_out)
    if not relatives.any():
        raise EvaluationError(
            "no query has a relative in the gallery; retrieval is measured where a class has at least two samples.",
            code="too-few-samples",
        )
    return relatives
