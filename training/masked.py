"""Reductions over the entries that a mask keeps; safe, with zero gradient, where it keeps none."""

from __future__ import annotations

import torch
from torch import Tensor


def logsumexp(values: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log of the sum of exp(values) along `dim` over the entries of `mask`; -inf, without gradient, of no entries.

    softplus of it is log(1 + sum of exp), so that no entries give 0.
    """
    return values.masked_fill(~mask, -torch.inf).logsumexp(dim)


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values of `mask`, a scalar; 0 of no entries. Values outside may be infinite."""
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)
