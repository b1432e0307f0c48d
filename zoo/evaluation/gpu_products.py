"""Blocks of inner products on a GPU: multiplied and thinned out there, so that only the pairs that count come back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from zoo.evaluation.products import Float32Products, Pairs

if TYPE_CHECKING:
    from torch import Tensor

_PIECE = 2**24
"""How many numbers are sent at a time."""


def gpu() -> str | None:
    """The device of torch to multiply on, where torch is loaded already and sees a GPU."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else None


def on_gpu(queries: np.ndarray, gallery: np.ndarray) -> GpuProducts | None:
    """None where there is no GPU, or one on which the rows do not fit."""
    device = gpu()
    if device is None:
        return None
    import torch

    try:
        return GpuProducts(queries, gallery, device)
    except torch.OutOfMemoryError:
        return None


class GpuProducts(Float32Products):
    """As `Float32Products`, whose bounds hold for sums in any order. The rows lie on the device as a whole."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, device: str) -> None:
        super().__init__(queries, gallery)
        self._gallery = _sent(gallery, device)
        self._queries = self._gallery if queries is gallery else _sent(queries, device)

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        products = self._block(rows, columns)
        reached = products >= self._there(floors)[:, None]
        if column_floors is not None:
            reached |= products >= self._there(column_floors)
        return _pairs(products, reached)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, doubt: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        products = self._block(rows, columns)
        if products.shape[1] < k:
            floors = np.full(len(products), -np.inf)
        else:
            floors = products.topk(k).values[:, -1].double().cpu().numpy() - slack
        return floors, _pairs(products, products >= self._there(floors)[:, None])

    def _block(self, rows: slice, columns: slice) -> Tensor:
        import torch

        # TF32, which some programs switch on, keeps ten bits of a number: the bounds would not hold.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            return self._queries[rows] @ self._gallery[columns].T
        finally:
            torch.set_float32_matmul_precision(before)

    def _there(self, floors: np.ndarray) -> Tensor:
        import torch

        return torch.from_numpy(floors.astype(np.float32)).to(self._gallery.device)


def _sent(rows: np.ndarray, device: str) -> Tensor:
    """The rows on the device, piece by piece: they may be a memory-mapped file that cannot be written."""
    import torch

    there = torch.empty(rows.shape, dtype=torch.float32, device=device)
    step = max(1, _PIECE // rows.shape[1])
    for start in range(0, len(rows), step):
        there[start : start + step] = torch.from_numpy(np.array(rows[start : start + step]))
    return there


def _pairs(products: Tensor, reached: Tensor) -> Pairs:
    rows, columns = reached.nonzero(as_tuple=True)
    return rows.cpu().numpy(), columns.cpu().numpy(), products[rows, columns].cpu().numpy()
