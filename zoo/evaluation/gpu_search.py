"""Exact nearest neighbours on a GPU: multiplied, chosen and summed in double precision there; only they come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from zoo.evaluation import gpu
from zoo.evaluation.gpu import width_of

if TYPE_CHECKING:
    from torch import Tensor

_PRODUCTS = 2**27
"""How many products a chunk of queries has: half a gigabyte, of which choosing takes about as much again."""

_GATHERED = 2**25
"""How many numbers of candidates are gathered at a time, in double precision."""

Found = tuple[slice, np.ndarray, np.ndarray, np.ndarray]
"""A slice of c queries, their similarities float32 [c, k], indices int64 [c, k], and which are not proven, bool [c]."""


def on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuSearch | None:
    """None where there is no GPU, or one on which the rows do not fit."""
    return gpu.where_it_fits(lambda place: GpuSearch(queries, gallery, place))


class GpuSearch:
    """Queries [q, d] and a gallery [n, d], float32, that lie on a device as a whole."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._gallery = gpu.sent(gallery, place)
        self._queries = self._gallery if queries is gallery else gpu.sent(queries, place)

    def nearest(self, k: int, slack: np.ndarray, exclude_self: bool, chunk: int | None) -> Iterator[Found]:
        """The k nearest of each query, chunk by chunk, as `zoo.evaluation.neighbours` defines them.

        slack: float64 [q], how far below the k-th largest float32 product a true neighbour's may lie. The highest
        products of each row are summed again; where the lowest of these lies within the slack of the k-th, others may
        do so too, and the row is not proven; neither is one for which alone there is no room.
        """

        def nearest_of(rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return self._nearest(rows, k, slack[rows], exclude_self)

        def unproven(_: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            return np.empty((1, k), np.float32), np.empty((1, k), np.int64), np.ones(1, np.bool_)

        size = max(1, min(chunk or len(self._queries), _PRODUCTS // len(self._gallery)))
        for rows, neighbours in gpu.chunks_that_fit(len(self._queries), size, nearest_of, unproven):
            yield rows, *neighbours

    def _nearest(
        self, rows: slice, k: int, slack: np.ndarray, exclude_self: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        import torch

        with torch.autocast(self._gallery.device.type, enabled=False):
            queries = self._queries[rows]
            with gpu.full_precision():
                products = queries @ self._gallery.T
            if exclude_self:
                products.diagonal(rows.start).fill_(-torch.inf)
            width = min(width_of(k), len(self._gallery) - exclude_self)
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
        step = max(1, _GATHERED // (columns.shape[1] * queries.shape[1]))
        for start in range(0, len(queries), step):
            piece = slice(start, start + step)
            near = self._gallery[columns[piece]].double()
            out[piece] = (near @ queries[piece].double()[:, :, None])[:, :, 0]
        return out
