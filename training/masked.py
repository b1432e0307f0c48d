"""Reductions over the entries that a mask keeps; safe, with zero gradient, where it keeps none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def logsumexp(values: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log of the sum of exp(values) along `dim` over the entries of `mask`; -inf, without gradient, of no entries.

    softplus of it is log(1 + sum of exp), so that no entries give 0.
    """
    if not values.shape[dim]:
        return values.sum(dim).log()
    result: Tensor = _LogSumExp.apply(values, mask, dim)
    return result


def mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values of `mask`, a scalar; 0 of no entries. Values outside may be infinite."""
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


class _LogSumExp(torch.autograd.Function):
    """Several times as fast as to fill with -inf, which exp treats as a special case."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor, dim: int) -> Tensor:
        top = values.masked_fill(~mask, -torch.inf).amax(dim, keepdim=True).clamp_(min=torch.finfo(values.dtype).min)
        # Below exp(-80) of the largest nothing counts; smaller numbers would be denormal, which is slow.
        shares = (values - top).clamp_(-80, 0).exp_().mul_(mask)
        total = shares.sum(dim, keepdim=True)
        ctx.save_for_backward(shares, total)
        ctx.dim = dim
        return (total.log() + top).squeeze(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        shares, total = ctx.saved_tensors
        return shares * (grad.unsqueeze(ctx.dim) / total.clamp(min=1)), None, None
