"""The same kernels in torch on a GPU.

The GPU that measuring uses where torch is loaded anyway and sees one, and how float32 rows get there.

The nearest centres of k-means' points on a GPU; the rest of an iteration, which is little, stays with NumPy.

Ranks of all relatives on a GPU: similarities of a chunk of queries summed in double precision, and counted there.

Exact nearest neighbours on a GPU: multiplied, chosen and summed in double precision there; only they come back.

On a GPU what takes long of the measures of structure: all pairs of rows, and singular values.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


MIN_ROWS = 2**10
"""From how many rows on a GPU is worth what it takes to send them."""

_UPLOAD_NUMBERS = 2**24
"""How many numbers are sent at a time."""

_PRECISION_LOCK = threading.Lock()
"""Who changes the precision of products, which is the whole process's."""

T = TypeVar("T")


def device() -> str | None:
    """The device of torch to compute on, where torch is loaded already and sees a GPU."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else None


def try_on_gpu(make: Callable[[str], T]) -> T | None:
    """What `make` makes on the GPU; None where there is none, or one on which there is no room for it."""
    place = device()
    if place is None:
        return None
    import torch

    try:
        return make(place)
    except torch.OutOfMemoryError:
        return None


def chunks_that_fit(
    total: int, size: int, compute: Callable[[slice], T], instead: Callable[[slice], T] | None = None
) -> Iterator[tuple[slice, T]]:
    """Yield consecutive chunks of `total` rows with their results; chunks that do not fit into memory are halved.

    Args:
        total: The number of rows.
        size: The number of rows of the first chunks.
        compute: Computes a chunk; it may raise `torch.OutOfMemoryError`.
        instead: Makes the result of a single row that does not fit.

    Raises:
        torch.OutOfMemoryError: A single row does not fit, and `instead` is None.
    """
    import torch

    start = 0
    while start < total:
        rows = slice(start, min(start + size, total))
        try:
            result = compute(rows)
        except torch.OutOfMemoryError:
            if size > 1:
                size //= 2
                continue
            if instead is None:
                raise
            result = instead(rows)
        yield rows, result
        start = rows.stop


def to_device(rows: np.ndarray, place: str) -> Tensor:
    """The rows on the device, piece by piece: they may be a memory-mapped file that cannot be written."""
    import torch

    there = torch.empty(rows.shape, dtype=torch.float32, device=place)
    step = max(1, _UPLOAD_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        there[start : start + step] = torch.from_numpy(np.array(rows[start : start + step]))
    return there


@contextmanager
def full_precision() -> Iterator[Any]:
    """TF32, which some programs switch on, keeps ten bits of a number: bounds on rounding would not hold."""
    import torch

    products = torch.backends.cuda.matmul
    with _PRECISION_LOCK:
        if not hasattr(products, "fp32_precision"):  # torch below 2.9; what sets it there cannot be read of a newer one
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
        else:
            before, products.fp32_precision = products.fp32_precision, "ieee"
        try:
            yield
        finally:
            if hasattr(products, "fp32_precision"):
                products.fp32_precision = before
            else:
                torch.set_float32_matmul_precision(before)


def shortlist_width(k: int) -> int:
    """Return how many candidates a shortlist holds for k neighbours: twice as many, and some more."""
    return 2 * k + 32


_KMEANS_PRODUCTS = 2**27
"""How many products a chunk of points has: half a gigabyte, and chosen points are copied beside."""


def points_on_gpu(points: np.ndarray) -> GpuPoints | None:
    """None where there is no GPU, or one on which the points do not fit."""
    return try_on_gpu(lambda place: GpuPoints(points, place))


class GpuPoints:
    """Points float32 [n, d] that lie on a device as a whole."""

    def __init__(self, points: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._points, self._place = to_device(points, place), place

    def nearest(self, centres: np.ndarray, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As `zoo.evaluation.kmeans.CentreSearch`. Raises `torch.OutOfMemoryError` where not even one point has room."""
        import torch

        number = len(self._points) if chosen is None else len(chosen)
        labels, nearest = np.empty(number, np.int64), np.empty(number, np.float32)
        there = to_device(centres, self._place)
        halves = (there * there).sum(dim=1) / 2

        def best_of(part: slice) -> tuple[Tensor, Tensor]:
            rows = self._points[part if chosen is None else torch.from_numpy(chosen[part]).to(self._place)]
            with torch.autocast(there.device.type, enabled=False), full_precision():
                best = (rows @ there.T).sub_(halves).max(dim=1)
            return best.indices, best.values

        size = max(1, min(number, _KMEANS_PRODUCTS // len(centres)))
        for part, (indices, values) in chunks_that_fit(number, size, best_of):
            labels[part], nearest[part] = indices.cpu().numpy(), values.cpu().numpy()
        return labels, nearest


_RANK_PRODUCTS = 2**26
"""How many similarities a chunk of queries has: three quarters of a gigabyte with what they were rounded from."""


def ranks_on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuRanks | None:
    """None where there is no GPU, or one on which the rows do not fit."""
    return try_on_gpu(lambda place: GpuRanks(queries, gallery, place))


class GpuRanks:
    """Queries [q, d] and a gallery [n, d], float32, that lie on a device as a whole, in double precision."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._gallery = to_device(gallery, place).double()
        self._queries = self._gallery if queries is gallery else to_device(queries, place).double()

    def of(self, relatives: Callable[[int], np.ndarray], leave_one_out: bool) -> Iterator[np.ndarray]:
        """For each query the ranks, from 1, of its relatives, which are gallery rows: int64 [R], in their order."""

        def ranks_of(queries: slice) -> list[np.ndarray]:
            wanted = [relatives(query) for query in range(queries.start, queries.stop)]
            ranks = self._ranks(queries.start, _padded(wanted), leave_one_out)
            return [row[: len(rows)] for row, rows in zip(ranks, wanted, strict=True)]

        for _, ranks in chunks_that_fit(len(self._queries), max(1, _RANK_PRODUCTS // len(self._gallery)), ranks_of):
            yield from ranks

    def _ranks(self, start: int, table: np.ndarray, leave_one_out: bool) -> np.ndarray:
        """table: int64 [c, R], of the queries from `start` on; what is 0 beyond a query's relatives is counted, too."""
        import torch

        columns = torch.from_numpy(table).to(self._gallery.device)
        with torch.autocast(self._gallery.device.type, enabled=False):
            similar = (self._queries[start : start + len(table)] @ self._gallery.T).float()
        if leave_one_out:
            similar.diagonal(start).fill_(-torch.inf)
        before = torch.arange(len(self._gallery), device=similar.device)
        found = [_rank(similar, before, one).cpu().numpy() for one in columns.T]
        return np.stack(found, axis=1) if found else table


def _rank(similar: Tensor, before: Tensor, column: Tensor) -> Tensor:
    """The rank of one column [c] a row: those that are more similar, and those as similar that stand before it."""
    own = similar.gather(1, column[:, None])
    return 1 + (similar > own).sum(1) + ((similar == own) & (before < column[:, None])).sum(1)


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Lists of indices as a table, int64 [n, longest], 0 where a list has ended."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for place, each in enumerate(rows):
        table[place, : len(each)] = each
    return table


_SEARCH_PRODUCTS = 2**27
"""How many products a chunk of queries has: half a gigabyte, of which choosing takes about as much again."""

_GATHER_NUMBERS = 2**25
"""How many numbers of candidates are gathered at a time, in double precision."""

SearchChunk = tuple[slice, np.ndarray, np.ndarray, np.ndarray]
"""A slice of c queries, their similarities float32 [c, k], indices int64 [c, k], and which are not proven, bool [c]."""


def search_on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuSearch | None:
    """None where there is no GPU, or one on which the rows do not fit."""
    return try_on_gpu(lambda place: GpuSearch(queries, gallery, place))


class GpuSearch:
    """Queries [q, d] and a gallery [n, d], float32, that lie on a device as a whole."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._gallery = to_device(gallery, place)
        self._queries = self._gallery if queries is gallery else to_device(queries, place)

    def nearest(self, k: int, slack: np.ndarray, exclude_self: bool, chunk: int | None) -> Iterator[SearchChunk]:
        """The k nearest of each query, chunk by chunk, as `zoo.evaluation.knn` defines them.

        slack: float64 [q], how far below the k-th largest float32 product a true neighbour's may lie. The highest
        products of each row are summed again; where the lowest of these lies within the slack of the k-th, others may
        do so too, and the row is not proven; neither is one for which alone there is no room.
        """

        def nearest_of(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return self._nearest(rows, k, slack[rows], exclude_self)

        def unproven(_: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return np.empty((1, k), np.float32), np.empty((1, k), np.int64), np.ones(1, np.bool_)

        size = max(1, min(chunk or len(self._queries), _SEARCH_PRODUCTS // len(self._gallery)))
        for rows, neighbours in chunks_that_fit(len(self._queries), size, nearest_of, unproven):
            yield rows, *neighbours

    def _nearest(
        self, rows: slice, k: int, slack: np.ndarray, exclude_self: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        import torch

        with torch.autocast(self._gallery.device.type, enabled=False):
            queries = self._queries[rows]
            with full_precision():
                products = queries @ self._gallery.T
            if exclude_self:
                products.diagonal(rows.start).fill_(-torch.inf)
            width = min(shortlist_width(k), len(self._gallery) - exclude_self)
            highest, columns = products.topk(width)
            kth, lowest = highest[:, k - 1].double(), highest[:, -1].double()
            unproven = lowest >= kth - torch.from_numpy(slack).to(lowest.device)
            if width == len(self._gallery) - exclude_self:
                unproven[:] = False
            # A stable sort leaves equal similarities in the order of their columns. The sum turns -0 into 0.
            columns = columns.sort(dim=1).values
            similarities = self._in_double(queries, columns) + 0.0
            best = similarities.sort(dim=1, descending=True, stable=True).indices[:, :k]
            near = similarities.gather(1, best), columns.gather(1, best), unproven
            similar, indices, doubtful = (values.cpu().numpy() for values in near)
            return similar, indices, doubtful

    def _in_double(self, queries: Tensor, columns: Tensor) -> Tensor:
        """The inner products of each query [c, d] with its columns, int64 [c, w], summed in double precision."""
        import torch

        out = torch.empty(columns.shape, dtype=torch.float32, device=columns.device)
        step = max(1, _GATHER_NUMBERS // (columns.shape[1] * queries.shape[1]))
        for start in range(0, len(queries), step):
            piece = slice(start, start + step)
            near = self._gallery[columns[piece]].double()
            out[piece] = (near @ queries[piece].double()[:, :, None])[:, :, 0]
        return out


_PAIR_PRODUCTS = 2**26
"""How many products a chunk of rows has: a quarter of a gigabyte, of which their exponentials take as much again."""


def kernel_sum_on_gpu(rows: np.ndarray, scale: float) -> float | None:
    """The sum of exp(scale (x.y - 1)) over all ordered pairs of different rows, float32 [n, d].

    None where there is no GPU, or one on which there is no room for it.
    """
    return try_on_gpu(lambda place: _kernel_sum(rows, scale, place))


def singular_values_on_gpu(rows: np.ndarray) -> np.ndarray | None:
    """Those of float32 [n, d], float64 [min(n, d)], descending, in double precision; None as above."""
    return try_on_gpu(lambda place: _singular_values(rows, place))


def _kernel_sum(rows: np.ndarray, scale: float, place: str) -> float:
    import torch

    there, total = to_device(rows, place), 0.0
    step = max(1, _PAIR_PRODUCTS // len(rows))
    for start in range(0, len(rows), step):
        with torch.autocast(there.device.type, enabled=False), full_precision():
            near = (scale * (there[start : start + step] @ there.T - 1)).exp_()
        near.diagonal(start).fill_(0)
        total += float(near.sum(dtype=torch.float64))
    return total


def _singular_values(rows: np.ndarray, place: str) -> np.ndarray:
    import torch

    values: np.ndarray = torch.linalg.svdvals(to_device(rows, place).double()).cpu().numpy()
    return values
