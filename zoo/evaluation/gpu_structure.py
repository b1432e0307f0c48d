"""On a GPU what takes long of the measures of structure: all pairs of rows, and singular values."""

from __future__ import annotations

import numpy as np

from zoo.evaluation import gpu

_PRODUCTS = 2**26
"""How many products a chunk of rows has: a quarter of a gigabyte, of which their exponentials take as much again."""


def pairs_within(rows: np.ndarray, scale: float) -> float | None:
    """The sum of exp(scale (x.y - 1)) over all ordered pairs of different rows, float32 [n, d].

    None where there is no GPU, or one on which there is no room for it.
    """
    return gpu.where_it_fits(lambda place: _pairs_within(rows, scale, place))


def singular_values(rows: np.ndarray) -> np.ndarray | None:
    """Those of float32 [n, d], float64 [min(n, d)], descending, in double precision; None as above."""
    return gpu.where_it_fits(lambda place: _singular_values(rows, place))


def _pairs_within(rows: np.ndarray, scale: float, place: str) -> float:
    import torch

    there, total = gpu.sent(rows, place), 0.0
    step = max(1, _PRODUCTS // len(rows))
    for start in range(0, len(rows), step):
        with torch.autocast(there.device.type, enabled=False), gpu.full_precision():
            near = (scale * (there[start : start + step] @ there.T - 1)).exp_()
        near.diagonal(start).fill_(0)
        total += float(near.sum(dtype=torch.float64))
    return total


def _singular_values(rows: np.ndarray, place: str) -> np.ndarray:
    import torch

    values: np.ndarray = torch.linalg.svdvals(gpu.sent(rows, place).double()).cpu().numpy()
    return values
