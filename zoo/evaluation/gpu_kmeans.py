"""The nearest centres of k-means' points on a GPU; the rest of an iteration, which is little, stays with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zoo.evaluation import gpu

if TYPE_CHECKING:
    from torch import Tensor

_PRODUCTS = 2**27
"""How many products a chunk of points has: half a gigabyte, and chosen points are copied beside."""


def on_gpu(points: np.ndarray) -> GpuPoints | None:
    """None where there is no GPU, or one on which the points do not fit."""
    return gpu.where_it_fits(lambda place: GpuPoints(points, place))


class GpuPoints:
    """Points float32 [n, d] that lie on a device as a whole."""

    def __init__(self, points: np.ndarray, place: str) -> None:
        """Raises `torch.OutOfMemoryError`."""
        self._points, self._place = gpu.sent(points, place), place

    def nearest(self, centres: np.ndarray, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As `zoo.evaluation.kmeans.Nearest`. Raises `torch.OutOfMemoryError` where not even one point has room."""
        import torch

        number = len(self._points) if chosen is None else len(chosen)
        labels, nearest = np.empty(number, np.int64), np.empty(number, np.float32)
        there = gpu.sent(centres, self._place)
        halves = (there * there).sum(dim=1) / 2

        def best_of(part: slice) -> tuple[Tensor, Tensor]:
            rows = self._points[part if chosen is None else torch.from_numpy(chosen[part]).to(self._place)]
            with torch.autocast(there.device.type, enabled=False), gpu.full_precision():
                best = (rows @ there.T).sub_(halves).max(dim=1)
            return best.indices, best.values

        size = max(1, min(number, _PRODUCTS // len(centres)))
        for part, (indices, values) in gpu.chunks_that_fit(number, size, best_of):
            labels[part], nearest[part] = indices.cpu().numpy(), values.cpu().numpy()
        return labels, nearest
