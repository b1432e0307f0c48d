"""Exact nearest neighbours by inner product, on NumPy alone.

A float32 matrix product finds, for each query, the few gallery rows that could be among its k nearest, with a proven
bound on the product's rounding; their inner products are then summed in double precision and decide the order.
A faster product (bfloat16, another device) would change the first step and its bound, never the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from zoo.errors import EvaluationError

CHUNK_BYTES = 64 * 2**20
"""How large one chunk's matrix of float32 products may be where `chunk` is not given."""

_UNIT_ROUNDOFF = 2.0**-24
_BLOCK = 2**20
_LARGEST_PRODUCT = 1e37


def nearest_neighbours(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k gallery rows of largest inner product with each query: similarities float32 [q, k], indices int64 [q, k].

    queries: [q, d]; gallery: [n, d]; both are taken as float32. For rows of unit length the similarity is the cosine.
    exclude_self: the queries are the gallery, row by row; row i is left out of the neighbours of query i by its
        index, so a duplicate of it elsewhere still counts.
    chunk: how many queries are compared with the whole gallery at a time; memory grows with chunk x n.

    The search is exact. A similarity is the inner product of the float32 rows, summed in double precision and rounded
    to float32. Neighbours come by similarity, descending; equal ones by index, ascending, also where the k-th place is
    shared. Equal rows have equal similarities wherever they stand and whatever the chunk (two ways of summing in
    double precision could part them only where the sum lies within 1e-13 of halfway between two float32 numbers).

    Raises `EvaluationError` for rows that are not 2-D, finite and of one length, and for a k below 1 or beyond the
    gallery.
    """
    chunks = neighbour_chunks(queries, gallery, k, exclude_self, chunk)
    similarities = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int64)
    for rows, similar, found in chunks:
        similarities[rows], indices[rows] = similar, found
    return similarities, indices


def neighbour_chunks(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """`nearest_neighbours` in pieces: (the queries' slice, similarities [c, k], indices [c, k]) for each chunk of c.

    The arguments are checked at once, the chunks are computed as they are asked for.
    """
    queries, gallery = as_rows(queries, "queries"), as_rows(gallery, "gallery")
    _check(queries, gallery, k, exclude_self, chunk)
    chunk = chunk or max(1, CHUNK_BYTES // (4 * len(gallery)))
    return _search(queries, gallery, k, _slack(queries, gallery), exclude_self, chunk)


def _search(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, exclude_self: bool, chunk: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    for start in range(0, len(queries), chunk):
        rows = slice(start, min(start + chunk, len(queries)))
        own = np.arange(rows.start, rows.stop) if exclude_self else None
        yield rows, *_nearest(queries[rows], gallery, k, slack[rows], own)


def as_rows(values: Any, name: str) -> np.ndarray:
    """`values` as float32 [n, d]. Raises `EvaluationError` unless they are finite numbers of two dimensions."""
    try:
        rows = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; torch tensors on a GPU or with gradients
        raise EvaluationError(f"{name} cannot be read as an array: {error}") from None
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiub":
        raise EvaluationError(
            f"{name} must be numbers of shape [rows, dimensions], not {rows.dtype} of shape {list(rows.shape)}."
        )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is named below
        rows = np.ascontiguousarray(rows, dtype=np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise EvaluationError(
            f"row {int(finite.argmin())} of {name} holds NaN or infinite values "
            f"({int((~finite).sum())} of {len(rows)} rows do); embed again or drop those rows."
        )
    return rows


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The rows' Euclidean lengths, summed in double precision: float64 [n]."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


def _check(queries: np.ndarray, gallery: np.ndarray, k: int, exclude_self: bool, chunk: int | None) -> None:
    if queries.shape[1] != gallery.shape[1]:
        raise EvaluationError(f"queries have {queries.shape[1]} dimensions and the gallery {gallery.shape[1]}.")
    if exclude_self and not np.array_equal(queries, gallery):
        raise EvaluationError("with exclude_self the queries must be the gallery, row by row; they differ.")
    if k < 1:
        raise EvaluationError(f"k must be at least 1, not {k}.")
    if k > (available := len(gallery) - exclude_self):
        beside = " beside the query" if exclude_self else ""
        raise EvaluationError(f"k is {k}, but the gallery has only {available} row(s){beside}; use a smaller k.")
    if chunk is not None and chunk < 1:
        raise EvaluationError(f"chunk must be at least 1, not {chunk}.")


def _slack(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """How far below the k-th largest float32 product of a query a true neighbour's product may lie, float64 [q].

    A product of d terms is wrong by at most gamma_d |q| |g|, gamma_d = d u / (1 - d u), in whatever order it is summed
    (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1); both it and the k-th may be. The further
    terms cover the rounding of the results and of the threshold; the last summand covers underflow.
    """
    terms = (queries.shape[1] + 8) * _UNIT_ROUNDOFF
    largest = row_norms(gallery).max()
    norms = row_norms(queries)
    if len(norms) and norms.max() * largest > _LARGEST_PRODUCT:
        raise EvaluationError("the rows are too large for float32 products; scale them to unit length.")
    slack: np.ndarray = 2 * terms / (1 - terms) * norms * largest + 2 * queries.shape[1] * 2.0**-126
    return slack


def _nearest(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, own: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    products = queries @ gallery.T
    if own is not None:
        products[np.arange(len(own)), own] = -np.inf
    place = len(gallery) - k
    kth = np.partition(products, place, axis=1)[:, place]
    threshold = (kth - slack).astype(np.float32)
    rows, columns = np.divmod(np.flatnonzero(products >= threshold[:, None]), len(gallery))
    # Where most of the gallery could be near (large k, collapsed embeddings), one dense product costs less than pairs.
    if len(rows) > products.size // 16:
        _multiply_in_double(queries, gallery, out=products)
        exact = products[rows, columns]
    else:
        exact = _pairs_in_double(queries, gallery, rows, columns)
    return _first_k(rows, columns, exact, len(queries), k)


def _pairs_in_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], float32 [pairs]."""
    queries = queries.astype(np.float64)
    out = np.empty(len(rows), np.float32)
    step = max(1, _BLOCK // gallery.shape[1])
    for start in range(0, len(rows), step):
        pairs = slice(start, start + step)
        out[pairs] = np.einsum("ij,ij->i", queries[rows[pairs]], gallery[columns[pairs]].astype(np.float64))
    return out


def _multiply_in_double(queries: np.ndarray, gallery: np.ndarray, out: np.ndarray) -> None:
    queries = queries.astype(np.float64)
    step = max(1, _BLOCK // gallery.shape[1])
    for start in range(0, len(gallery), step):
        block = slice(start, start + step)
        out[:, block] = queries @ gallery[block].astype(np.float64).T


def _first_k(
    rows: np.ndarray, columns: np.ndarray, similarities: np.ndarray, queries: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort each query's candidates, given row by row with ascending columns, and keep k of each."""
    starts = np.searchsorted(rows, np.arange(queries + 1))
    place = np.arange(len(rows)) - starts[rows]
    width = int(np.diff(starts).max())
    table = np.full((queries, width), -np.inf, np.float32)
    names = np.zeros((queries, width), np.int64)
    table[rows, place], names[rows, place] = similarities, columns
    # A stable sort leaves equal similarities in the order of their columns.
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, order, axis=1), np.take_along_axis(names, order, axis=1)
