"""Matrix products in blocks on several threads, and the entries of a block that reach a floor."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from zoo.evaluation.memory import GATHERED_PAIRS, release

Task = TypeVar("Task")
Result = TypeVar("Result")

UNIT_ROUNDOFF = 2.0**-24

_BLOCK_NUMBERS = 2**20

_MANY_PAIRS = 8
"""The number of pairs per query beyond which the pairs are computed query by query."""

_GATHER_NUMBERS = 2**16
"""The number of pairs' numbers that are gathered at a time."""

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p], and the float32 products of those rows, [p]."""


class Float32Products:
    """Products of blocks of queries [q, d] with blocks of the gallery [n, d], both float32."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray) -> None:
        self.queries, self.gallery = queries, gallery
        self._products, self._masks = Buffer(np.float32), (Buffer(np.bool_), Buffer(np.bool_))

    def workers(self) -> Workers:
        """Return the threads to compute blocks with: one, because NumPy's product uses all cores itself."""
        return Workers(1)

    def block(self, rows: slice, columns: slice) -> np.ndarray:
        """Return the products of a block, float32 [r, c], in a buffer that the next call overwrites."""
        queries, gallery = self.queries[rows], self.gallery[columns]
        products = np.matmul(queries, gallery.T, out=self._products.matrix(len(queries), len(gallery)))
        release(queries)
        release(gallery)
        return products

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        """Return the pairs of a block whose product reaches the floor of its row or of its column, row by row.

        Args:
            rows: The r queries of the block.
            columns: The c gallery rows of the block.
            floors: The floor of each row, [r].
            column_floors: The floor of each column, [c]; None to compare with the floors of the rows only.
        """
        return self.select(self.block(rows, columns), floors, column_floors)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, margin: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        """Return floors and pairs of a block, which include all pairs that reach the floor of their row.

        In each row, k products reach the floor even if it is raised by the slack [r]. This is proven for a margin of 2
        roundings; a smaller margin selects fewer rounded products, and the caller has to check it. The floors are -inf
        where a block has fewer than k columns.

        Args:
            rows: The r queries of the block.
            columns: The gallery rows of the block.
            k: The number of products per row that reach its floor.
            slack: The slack of rounding of each row, [r].
            margin: The number of roundings that a bound allows for.

        Returns:
            The floors, float64 [r], and the pairs.
        """
        products = self.block(rows, columns)
        floors = kth_lower_bounds(products, k) - slack
        return floors, self.select(products, floors.astype(np.float32))

    def select(self, products: np.ndarray, floors: np.ndarray, column_floors: np.ndarray | None = None) -> Pairs:
        """Return the entries of a matrix that reach the floor of their row or of their column, row by row."""
        mask, column_mask = (masks.matrix(*products.shape) for masks in self._masks)
        np.greater_equal(products, floors[:, None], out=mask)
        if column_floors is not None:
            mask |= np.greater_equal(products, column_floors, out=column_mask)
        return masked_entries(products, mask)


class Buffer(threading.local):
    """Reused memory for matrices of any shape, per thread: fresh pages cost more than the arithmetic on them."""

    def __init__(self, dtype: Any) -> None:
        self._memory = np.empty(0, dtype)

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        if self._memory.size < rows * columns:
            self._memory = np.empty(rows * columns, self._memory.dtype)
        return self._memory[: rows * columns].reshape(rows, columns)


class Workers:
    """Context manager of threads that compute ahead of their consumer.

    Args:
        threads: The number of threads. With one, no thread is started: each task runs when its result is taken.
        prepare: Called in each thread before any task.
        prepared: Called by the constructor when all threads are prepared.
    """

    def __init__(
        self,
        threads: int,
        prepare: Callable[[], object] = lambda: None,
        prepared: Callable[[], object] = lambda: None,
    ) -> None:
        self._ahead = 2 * threads
        self._pool = ThreadPoolExecutor(threads, initializer=prepare) if threads > 1 else None
        if self._pool:
            ready = threading.Barrier(threads + 1)
            for _ in range(threads):  # each thread waits for the others, so each gets one of these tasks
                self._pool.submit(ready.wait)
            ready.wait()
            prepared()

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield function(task) of each task in order; only a few tasks and results are pending at any time."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        pending: deque[Future[Result]] = deque()
        for task in tasks:
            pending.append(self._pool.submit(function, task))
            if len(pending) > self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


def single_core_workers() -> Workers:
    """Return as many threads as torch computes with; each computes its own blocks on one core."""
    import faiss
    import torch

    threads = torch.get_num_threads()

    def use_one_core() -> None:
        faiss.omp_set_num_threads(1)
        torch.set_num_threads(1)
        torch.get_num_threads()  # otherwise the thread adopts the global number when it first computes

    return Workers(threads, use_one_core, lambda: torch.set_num_threads(threads))


def row_norms(rows: np.ndarray) -> np.ndarray:
    """Return the rows' Euclidean lengths, summed in double precision: float64 [n]."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


def norm_bounds(rows: np.ndarray) -> np.ndarray:
    """Return proven upper bounds on the rows' Euclidean lengths, slightly above them: float64 [n].

    This is much faster than `row_norms`: squares are summed in single precision, with an error of at most gamma_d of
    their sum (see `zoo.evaluation.knn._slack`) and of 2^-126 each where they underflow.
    """
    squares, step = np.empty(len(rows)), max(1, _BLOCK_NUMBERS // rows.shape[1])
    with np.errstate(over="ignore"):
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            squares[start : start + step] = np.einsum("ij,ij->i", part, part)
            release(part)
    if not np.isfinite(squares).all():
        return row_norms(rows) * (1 + UNIT_ROUNDOFF)
    terms = (rows.shape[1] + 8) * UNIT_ROUNDOFF
    bounds: np.ndarray = np.sqrt(squares / (1 - terms) + 2 * rows.shape[1] * 2.0**-126)
    return bounds


def kth_lower_bounds(products: np.ndarray, k: int) -> np.ndarray:
    """Return for each row of products [r, c] a number that at least k of them reach, and few more: float64 [r].

    The columns are dealt out to groups; the k-th largest of the groups' maxima is reached in k groups, so by at least k
    products. With four times as many groups as k, about 1.15 k reach it. It is -inf for fewer than k columns.
    """
    rows, columns = products.shape
    if columns < k:
        return np.full(rows, -np.inf)
    groups = min(columns, max(4 * k, 256))
    size = columns // groups
    highest = products[:, : size * groups].reshape(rows, size, groups).max(axis=1)
    kth: np.ndarray = np.partition(highest, groups - k, axis=1)[:, groups - k].astype(np.float64)
    return kth


def masked_entries(products: np.ndarray, mask: np.ndarray) -> Pairs:
    """Return rows, columns and values of the marked entries of a matrix, row by row."""
    flat = flat_nonzero(mask)
    rows = flat // products.shape[1]
    return rows, flat - rows * products.shape[1], products.ravel()[flat]


def flat_nonzero(mask: np.ndarray) -> np.ndarray:
    """Return `np.flatnonzero` of a contiguous bool matrix, in about half the time where few entries are set.

    Words of eight entries without any set are skipped.
    """
    flat = mask.reshape(-1)
    whole = len(flat) - len(flat) % 8
    words = flat[:whole].view(np.uint64)
    nonzero = words != 0
    if np.count_nonzero(nonzero) > len(nonzero) // 2:
        return np.flatnonzero(flat)
    places = np.flatnonzero(nonzero)
    within = np.flatnonzero(words[places].view(np.bool_))
    indices = (places[within >> 3] << 3) + (within & 7)
    return np.concatenate([indices, whole + np.flatnonzero(flat[whole:])])


def pair_products_float32(
    queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Return the inner products of queries[rows] with gallery[columns].

    Args:
        queries: Float32 [q, d].
        gallery: Float32 [n, d].
        rows: Query numbers, int64 [p].
        columns: Gallery row numbers, int64 [p].

    Returns:
        The products, float32 [p].
    """
    import faiss

    out = np.empty(len(rows), np.float32)
    pointer = faiss.swig_ptr
    faiss.pairwise_indexed_inner_product(
        queries.shape[1], len(rows), pointer(queries), pointer(rows), pointer(gallery), pointer(columns), pointer(out)
    )
    return out


def pair_products_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the inner products of queries[rows] with gallery[columns], summed in double precision.

    Args:
        queries: Float32 [q, d].
        gallery: Float32 [n, d].
        rows: Query numbers, int64 [p], ascending.
        columns: Gallery row numbers, int64 [p].

    Returns:
        The products, float32 [p].
    """
    distinct, starts = np.unique(rows, return_index=True)
    if len(rows) <= _MANY_PAIRS * len(distinct):
        return _few_pair_products_double(queries, gallery, rows, columns)
    # Query by query, so that the gathered rows stay in the cache.
    out, released = np.empty(len(rows), np.float32), 0
    gathered, doubled = Buffer(np.float32), Buffer(np.float64)
    for row, start, end in zip(distinct.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        if end - released > GATHERED_PAIRS:
            _release_both(queries, gallery)
            released = start
        candidates = doubled.matrix(end - start, gallery.shape[1])
        single = gathered.matrix(end - start, gallery.shape[1])
        candidates[...] = np.take(gallery, columns[start:end], axis=0, out=single, mode="clip")
        # Row by row: a matrix product would wake the threads of BLAS for little work.
        out[start:end] = np.vecdot(candidates, queries[row].astype(np.float64))
    _release_both(queries, gallery)
    return out


def _few_pair_products_double(
    queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    out = np.empty(len(rows), np.float32)
    step = min(GATHERED_PAIRS, max(1, _GATHER_NUMBERS // queries.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        a, b = queries[rows[part]].astype(np.float64), gallery[columns[part]].astype(np.float64)
        out[part] = np.vecdot(a, b)
        _release_both(queries, gallery)
    return out


def _release_both(queries: np.ndarray, gallery: np.ndarray) -> None:
    release(queries)
    release(gallery)
