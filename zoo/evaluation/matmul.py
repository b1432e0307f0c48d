"""Matrix products in blocks on a few threads, and their entries that reach a floor: float32, or faster with a bound."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

Task = TypeVar("Task")
Result = TypeVar("Result")

UNIT_ROUNDOFF = 2.0**-24

_MANY_PAIRS = 8
"""Beyond how many pairs a query they are worth a step of their own."""
_GATHER_NUMBERS = 2**16
"""How many numbers of pairs are gathered at a time."""

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p], and the float32 products of those rows, [p]."""


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The rows' Euclidean lengths, summed in double precision: float64 [n]."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


def norm_bounds(rows: np.ndarray) -> np.ndarray:
    """Proven upper bounds on the rows' Euclidean lengths, little above them: float64 [n].

    Far quicker than `row_norms`: squares are summed in single precision, wrong by at most gamma_d of their sum (see
    neighbours._slack) and by 2^-126 each where they underflow.
    """
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    if not np.isfinite(squares).all():
        return row_norms(rows) * (1 + UNIT_ROUNDOFF)
    terms = (rows.shape[1] + 8) * UNIT_ROUNDOFF
    bounds: np.ndarray = np.sqrt(squares / (1 - terms) + 2 * rows.shape[1] * 2.0**-126)
    return bounds


class Float32Products:
    """Products of blocks of queries [q, d] with blocks of the gallery [n, d], both float32.

    workers() are as many threads as had best ask at a time: one, as NumPy's product takes all cores itself.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray) -> None:
        self.queries, self.gallery = queries, gallery
        self._products, self._masks = Buffer(np.float32), (Buffer(np.bool_), Buffer(np.bool_))

    def workers(self) -> Workers:
        return Workers(1)

    def all_of(self, rows: slice, columns: slice) -> np.ndarray:
        """The block's products, float32 [r, c]: a buffer, good until the next call."""
        queries, gallery = self.queries[rows], self.gallery[columns]
        return np.matmul(queries, gallery.T, out=self._products.of(len(queries), len(gallery)))

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        """The pairs of a block whose product reaches the floor of its row or of its column, row by row."""
        return self.where(self.all_of(rows, columns), floors, column_floors)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, doubt: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        """Floors, float64 [r], and among others the pairs of a block that reach the floor of their row.

        Of each row k products reach the floor even when it is raised by the slack [r]: this is proven for a doubt of
        2, and left to be seen for less, which spares pairs where products are rounded. Where a block has fewer columns
        the floors are -inf.
        """
        products = self.all_of(rows, columns)
        floors = kth_lower_bounds(products, k) - slack
        return floors, self.where(products, floors.astype(np.float32))

    def where(self, products: np.ndarray, floors: np.ndarray, column_floors: np.ndarray | None = None) -> Pairs:
        """The entries of a matrix that reach the floor of their row or of their column, row by row."""
        mask, other = (masks.of(*products.shape) for masks in self._masks)
        np.greater_equal(products, floors[:, None], out=mask)
        if column_floors is not None:
            mask |= np.greater_equal(products, column_floors, out=other)
        return masked_entries(products, mask)


def masked_entries(products: np.ndarray, mask: np.ndarray) -> Pairs:
    """The marked entries of a matrix, row by row: their rows and columns, and what stands there."""
    found = flat_nonzero(mask)
    rows = found // products.shape[1]
    return rows, found - rows * products.shape[1], products.ravel()[found]


def flat_nonzero(mask: np.ndarray) -> np.ndarray:
    """`np.flatnonzero` of a contiguous matrix of bools, which takes about half as long where few are set: words of
    eight in which none is are passed over.
    """
    flat = mask.reshape(-1)
    whole = len(flat) - len(flat) % 8
    words = flat[:whole].view(np.uint64)
    some = words != 0
    if np.count_nonzero(some) > len(some) // 2:
        return np.flatnonzero(flat)
    places = np.flatnonzero(some)
    within = np.flatnonzero(words[places].view(np.bool_))
    found = (places[within >> 3] << 3) + (within & 7)
    return np.concatenate([found, whole + np.flatnonzero(flat[whole:])])


class Buffer(threading.local):
    """Memory for matrices of any shape, kept: fresh pages cost more than the arithmetic on them. Each thread has its
    own."""

    def __init__(self, dtype: Any) -> None:
        self._memory = np.empty(0, dtype)

    def of(self, rows: int, columns: int) -> np.ndarray:
        if self._memory.size < rows * columns:
            self._memory = np.empty(rows * columns, self._memory.dtype)
        return self._memory[: rows * columns].reshape(rows, columns)


def kth_lower_bounds(products: np.ndarray, k: int) -> np.ndarray:
    """For each row of products [r, c] a number that at least k of them reach, and few more: float64 [r].

    The columns are dealt out to groups; the k-th largest of the groups' maxima is reached in k groups, so by k
    products at least. With four times as many groups as k some 1.15 k reach it. -inf where there are not k columns.
    """
    rows, columns = products.shape
    if columns < k:
        return np.full(rows, -np.inf)
    groups = min(columns, max(4 * k, 256))
    size = columns // groups
    highest = products[:, : size * groups].reshape(rows, size, groups).max(axis=1)
    kth: np.ndarray = np.partition(highest, groups - k, axis=1)[:, groups - k].astype(np.float64)
    return kth


def pair_products_float32(
    queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], float32 [p]."""
    import faiss

    out = np.empty(len(rows), np.float32)
    pointer = faiss.swig_ptr
    faiss.pairwise_indexed_inner_product(
        queries.shape[1], len(rows), pointer(queries), pointer(rows), pointer(gallery), pointer(columns), pointer(out)
    )
    return out


def pair_products_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], rows ascending, summed in double precision, as float32."""
    asked, starts = np.unique(rows, return_index=True)
    if len(rows) <= _MANY_PAIRS * len(asked):
        return _few_pair_products_double(queries, gallery, rows, columns)
    # Query by query, so that what is gathered stays in the cache.
    out = np.empty(len(rows), np.float32)
    gathered, doubled = Buffer(np.float32), Buffer(np.float64)
    for row, start, end in zip(asked.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        near = doubled.of(end - start, gallery.shape[1])
        single = gathered.of(end - start, gallery.shape[1])
        near[...] = np.take(gallery, columns[start:end], axis=0, out=single, mode="clip")
        # Row by row: a product of all would wake BLAS's threads for little.
        out[start:end] = np.vecdot(near, queries[row].astype(np.float64))
    return out


def _few_pair_products_double(
    queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    out = np.empty(len(rows), np.float32)
    step = max(1, _GATHER_NUMBERS // queries.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        a, b = queries[rows[part]].astype(np.float64), gallery[columns[part]].astype(np.float64)
        out[part] = np.vecdot(a, b)
    return out


class Workers:
    """Threads that compute ahead of whoever takes their results; a context that ends with them.

    threads: how many; one means none: each task is done when its result is taken. prepare: called in each thread
        before any task; prepared: called here when all of them are.
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
            for _ in range(threads):  # each thread waits for the others, so each gets one of these
                self._pool.submit(ready.wait)
            ready.wait()
            prepared()

    def ahead(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """function(task) of each task, in their order. Tasks and results at hand stay few, however many there are."""
        if self._pool is None:
            yield from map(function, tasks)
            return
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(function, task))
            if len(waiting) > self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


def single_core_workers() -> Workers:
    """As many as torch computes with: each computes blocks of its own on one core, and waits for no other."""
    import faiss
    import torch

    threads = torch.get_num_threads()

    def on_one_core() -> None:
        faiss.omp_set_num_threads(1)
        torch.set_num_threads(1)
        torch.get_num_threads()  # else the thread takes the number of all threads over when it first computes

    return Workers(threads, on_one_core, lambda: torch.set_num_threads(threads))
