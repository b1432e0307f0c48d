"""Torch versions of the expensive kernels of evaluation, for a GPU.

They serve exact nearest neighbours, the ranks of all relatives, and sums over all pairs. They are used where torch is
loaded already and sees a GPU with enough memory; the results are those of NumPy.
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
"""The number of rows from which a GPU is worth the transfer."""

_UPLOAD_NUMBERS = 2**24
"""The size of one upload, in numbers."""

_SEARCH_PRODUCTS = 2**27
"""The number of products of a chunk of queries: half a gigabyte, and selecting takes about as much again."""

_GATHER_NUMBERS = 2**25
"""The number of candidates' numbers that are gathered at a time, in double precision."""

_RANK_PRODUCTS = 2**26
"""The number of similarities of a chunk of queries: three quarters of a gigabyte, with the products before rounding."""

_PAIR_PRODUCTS = 2**26
"""The number of products of a chunk of rows: a quarter of a gigabyte, and as much again for their exponentials."""

_PRECISION_LOCK = threading.Lock()
"""Held while the precision of products is changed, which is a setting of the whole process."""

T = TypeVar("T")

SearchChunk = tuple[slice, np.ndarray, np.ndarray, np.ndarray]
"""A slice of c queries, their similarities float32 [c, k] and indices int64 [c, k], and the unproven rows, bool [c]."""


def search_on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuSearch | None:
    """Upload queries [q, d] and gallery [n, d]; return None if there is no GPU or too little memory."""
    return _try_on_gpu(lambda device: GpuSearch(queries, gallery, device))


def ranks_on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuRanks | None:
    """Upload queries [q, d] and gallery [n, d]; return None if there is no GPU or too little memory."""
    return _try_on_gpu(lambda device: GpuRanks(queries, gallery, device))


def kernel_sum_on_gpu(rows: np.ndarray, scale: float) -> float | None:
    """Return the sum of exp(scale (x.y - 1)) over all ordered pairs of different rows, float32 [n, d].

    Returns:
        The sum, or None if there is no GPU or too little memory.
    """
    return _try_on_gpu(lambda device: _kernel_sum(rows, scale, device))


def singular_values_on_gpu(rows: np.ndarray) -> np.ndarray | None:
    """Return the singular values of float32 [n, d] in double precision: float64 [min(n, d)], descending.

    Returns:
        The values, or None if there is no GPU or too little memory.
    """
    return _try_on_gpu(lambda device: _singular_values(rows, device))


class GpuSearch:
    """Exact nearest neighbours of queries [q, d] in a gallery [n, d], both float32 and stored on a device as a whole.

    Products, selection and the sums in double precision stay on the device; only the neighbours come back.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, device: str) -> None:
        self._gallery = to_device(gallery, device)
        self._queries = self._gallery if queries is gallery else to_device(queries, device)

    def nearest(self, k: int, slack: np.ndarray, exclude_self: bool, chunk: int | None) -> Iterator[SearchChunk]:
        """Yield the k nearest rows of the queries, chunk by chunk, as `zoo.evaluation.knn` defines them.

        The highest float32 products of each query make a shortlist, which is summed again in double precision. The
        result is proven if the lowest product of the shortlist is below the k-th by more than the slack. Otherwise a
        row outside the shortlist could be a neighbour, and the query is marked as unproven. A query that does not fit
        the device's memory by itself is unproven too.

        Args:
            k: The number of neighbours.
            slack: Float64 [q], how far below the k-th largest float32 product a true neighbour's product may be.
            exclude_self: Leave each row out of its own neighbours.
            chunk: The largest number of queries per chunk.
        """

        def nearest_of(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return self._nearest(rows, k, slack[rows], exclude_self)

        def unproven(_: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return np.empty((1, k), np.float32), np.empty((1, k), np.int64), np.ones(1, np.bool_)

        size = max(1, min(chunk or len(self._queries), _SEARCH_PRODUCTS // len(self._gallery)))
        for rows, neighbours in _chunks_that_fit(len(self._queries), size, nearest_of, unproven):
            yield rows, *neighbours

    def _nearest(
        self, rows: slice, k: int, slack: np.ndarray, exclude_self: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        import torch

        with torch.autocast(self._gallery.device.type, enabled=False):
            queries = self._queries[rows]
            with _full_precision():
                products = queries @ self._gallery.T
            if exclude_self:
                products.diagonal(rows.start).fill_(-torch.inf)
            width = min(shortlist_width(k), len(self._gallery) - exclude_self)
            highest, columns = products.topk(width)
            kth, lowest = highest[:, k - 1].double(), highest[:, -1].double()
            unproven = lowest >= kth - torch.from_numpy(slack).to(lowest.device)
            if width == len(self._gallery) - exclude_self:
                unproven[:] = False
            # A stable sort keeps equal similarities in the order of their columns. The sum turns -0 into 0.
            columns = columns.sort(dim=1).values
            similarities = self._sum_in_double(queries, columns) + 0.0
            best = similarities.sort(dim=1, descending=True, stable=True).indices[:, :k]
            similar, indices = similarities.gather(1, best), columns.gather(1, best)
            return similar.cpu().numpy(), indices.cpu().numpy(), unproven.cpu().numpy()

    def _sum_in_double(self, queries: Tensor, columns: Tensor) -> Tensor:
        """Return the inner products of each query [c, d] with its columns, int64 [c, w], summed in double precision."""
        import torch

        out = torch.empty(columns.shape, dtype=torch.float32, device=columns.device)
        step = max(1, _GATHER_NUMBERS // (columns.shape[1] * queries.shape[1]))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            candidates = self._gallery[columns[part]].double()
            out[part] = (candidates @ queries[part].double()[:, :, None])[:, :, 0]
        return out


class GpuRanks:
    """Ranks of relatives, for queries [q, d] and a gallery [n, d] stored on a device in double precision."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, device: str) -> None:
        self._gallery = to_device(gallery, device).double()
        self._queries = self._gallery if queries is gallery else to_device(queries, device).double()

    def ranks(self, relatives: Callable[[int], np.ndarray], leave_one_out: bool) -> Iterator[np.ndarray]:
        """Yield for each query the ranks, from 1, of its relatives: int64 [R], in the order of the relatives.

        Args:
            relatives: Returns the gallery rows that are relatives of a query.
            leave_one_out: The queries are the gallery, and each is left out of its own ranking.
        """

        def ranks_of(queries: slice) -> list[np.ndarray]:
            columns = [relatives(query) for query in range(queries.start, queries.stop)]
            ranks = self._ranks(queries.start, _padded(columns), leave_one_out)
            return [row[: len(rows)] for row, rows in zip(ranks, columns, strict=True)]

        for _, ranks in _chunks_that_fit(len(self._queries), max(1, _RANK_PRODUCTS // len(self._gallery)), ranks_of):
            yield from ranks

    def _ranks(self, start: int, table: np.ndarray, leave_one_out: bool) -> np.ndarray:
        """Return the ranks of a table of gallery rows, int64 [c, R], for the c queries from `start` on."""
        import torch

        columns = torch.from_numpy(table).to(self._gallery.device)
        with torch.autocast(self._gallery.device.type, enabled=False):
            similar = (self._queries[start : start + len(table)] @ self._gallery.T).float()
        if leave_one_out:
            similar.diagonal(start).fill_(-torch.inf)
        index = torch.arange(len(self._gallery), device=similar.device)
        ranks = [_rank(similar, index, column).cpu().numpy() for column in columns.T]
        return np.stack(ranks, axis=1) if ranks else table


def device() -> str | None:
    """Return torch's device to compute on, if torch is loaded already and sees a GPU."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else None


def _try_on_gpu(compute: Callable[[str], T]) -> T | None:
    """Return `compute(device)` on the GPU, or None if there is no GPU or too little memory."""
    gpu = device()
    if gpu is None:
        return None
    import torch

    try:
        return compute(gpu)
    except torch.OutOfMemoryError:
        return None


def _chunks_that_fit(
    total: int, size: int, compute: Callable[[slice], T], fallback: Callable[[slice], T] | None = None
) -> Iterator[tuple[slice, T]]:
    """Yield consecutive chunks of `total` rows with their results; chunks that do not fit into memory are halved.

    Args:
        total: The number of rows.
        size: The number of rows of the first chunks.
        compute: Computes a chunk; it may raise `torch.OutOfMemoryError`.
        fallback: Makes the result of a single row that does not fit.

    Raises:
        torch.OutOfMemoryError: If a single row does not fit, and there is no `fallback`.
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
            if fallback is None:
                raise
            result = fallback(rows)
        yield rows, result
        start = rows.stop


def to_device(rows: np.ndarray, device: str) -> Tensor:
    """Copy rows to the device as float32, in parts: they may be a read-only memory-mapped file."""
    import torch

    tensor = torch.empty(rows.shape, dtype=torch.float32, device=device)
    step = max(1, _UPLOAD_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        tensor[start : start + step] = torch.from_numpy(np.array(rows[start : start + step]))
    return tensor


@contextmanager
def _full_precision() -> Iterator[Any]:
    """Switch TF32 off: it keeps ten bits of a number, and bounds on rounding would not hold."""
    import torch

    products = torch.backends.cuda.matmul
    with _PRECISION_LOCK:
        if not hasattr(products, "fp32_precision"):  # torch below 2.9; a newer one cannot read what is set this way
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


def _rank(similar: Tensor, index: Tensor, column: Tensor) -> Tensor:
    """Return the rank of one column [c] per row: 1 + the more similar columns + the equal ones of lower index."""
    own = similar.gather(1, column[:, None])
    return 1 + (similar > own).sum(1) + ((similar == own) & (index < column[:, None])).sum(1)


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return lists of indices as a table, int64 [n, longest], padded with 0."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, indices in enumerate(rows):
        table[row, : len(indices)] = indices
    return table


def _kernel_sum(rows: np.ndarray, scale: float, device: str) -> float:
    import torch

    tensor, total = to_device(rows, device), 0.0
    step = max(1, _PAIR_PRODUCTS // len(rows))
    for start in range(0, len(rows), step):
        with torch.autocast(tensor.device.type, enabled=False), _full_precision():
            kernel = (scale * (tensor[start : start + step] @ tensor.T - 1)).exp_()
        kernel.diagonal(start).fill_(0)
        total += float(kernel.sum(dtype=torch.float64))
    return total


def _singular_values(rows: np.ndarray, device: str) -> np.ndarray:
    import torch

    values: np.ndarray = torch.linalg.svdvals(to_device(rows, device).double()).cpu().numpy()
    return values
