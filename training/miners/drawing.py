"""Random columns of the rows of a matrix: the one primitive from which all miners draw."""

from __future__ import annotations

import torch
from torch import Tensor

_ONE = 2**30


def draw(weights: Tensor, rows: Tensor) -> Tensor:
    """For each of `rows`, int64 [t], a column of that row, drawn in proportion to the row's weights; int64 [t].

    weights: bool [r, c], or float in 0..1, read in steps of 2^-30; a row that is drawn from has one above that.
    Draws are independent and come from torch's global generator.
    """
    # Sums of integers are exact in any order, on any device: a weight of zero is never drawn.
    ends = (weights * _ONE).long().flatten().cumsum_(0)
    last = ends.view_as(weights)[:, -1]
    first = last.roll(1)
    first[:1] = 0
    points = first[rows] + torch.randint(2**62, rows.shape, device=rows.device) % (last - first)[rows]
    return torch.searchsorted(ends, points, right=True) - rows * weights.shape[1]


def rows_of(*masks: Tensor) -> Tensor:
    """int64 [t]: the rows in which every one of the masks, bool [b, b], has an entry."""
    return torch.stack([mask.any(1) for mask in masks]).all(0).nonzero()[:, 0]


def prefer(mask: Tensor, otherwise: Tensor) -> Tensor:
    """bool [r, c]: the rows of `mask`, and where one is empty that of `otherwise`."""
    return mask | otherwise & ~mask.amax(1, keepdim=True)
