"""Sums of hinge terms [x]+ with what is needed to average them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from training.tuples import negative_mask, positive_mask


class Hinges(NamedTuple):
    """The sum of some terms [x]+, how many of them are above zero and how many there are; scalars."""

    total: Tensor
    active: Tensor
    number: Tensor

    def mean(self, active_only: bool) -> Tensor:
        """Mean over all terms, or over those above zero; 0 where there are none."""
        return self.total / (self.active if active_only else self.number).clamp(min=1)


def hinges(values: Tensor, mask: Tensor | None = None) -> Hinges:
    """[x]+ of every value, or of those of the mask, bool and of the same shape; weights count them as often."""
    terms = relu(values)
    if mask is None:
        return Hinges(terms.sum(), terms.detach().sign().sum(), terms.new_full((), terms.numel()))
    # Numbers, not bools: they are several times as fast to multiply and to count.
    kept = mask.to(values.dtype)
    return Hinges((terms * kept).sum(), (terms.detach().sign() * kept).sum(), kept.sum())


def contrast(values: Tensor, labels: Tensor, near: float, far: float, active_only: bool) -> Tensor:
    """Mean of [v - near]+ over positive pairs plus mean of [far - v]+ over negative pairs; values [b, b], labels [b].

    With active_only both means are over the terms above zero. A mean over nothing is 0.
    """
    result: Tensor = _Contrast.apply(values, labels, near, far, active_only)
    return result


class _Contrast(torch.autograd.Function):
    """Both kinds of terms in the same passes over the matrix, which is all that this costs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, labels: Tensor, near: float, far: float, active_only: bool) -> Tensor:
        # Floats into floats take a fifth of the time of numbers into a mask; they hold every class number exactly.
        classes = labels.float()
        same = torch.eq(classes[:, None], classes, out=classes.new_empty(values.shape)).to(values.dtype)
        terms = (far - values).lerp_(values - near, same).relu_().fill_diagonal_(0)
        of_near, of_far = _parts(terms.sign(), same) if active_only else _pairs(same)
        per_near, per_far = 1 / of_near.clamp(min=1), 1 / of_far.clamp(min=1)
        total_near, total_far = _parts(terms, same)
        # The gradient but for a factor, in place: one matrix is kept.
        ctx.save_for_backward(same.mul_(per_near + per_far).sub_(per_far).mul_(terms.sign_()))
        return total_near * per_near + total_far * per_far

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weights,) = ctx.saved_tensors
        return weights * gradient, None, None, None, None


def _pairs(same: Tensor) -> tuple[Tensor, Tensor]:
    """How many ordered pairs are positive and how many negative."""
    total = same.sum()
    return total - len(same), len(same) ** 2 - total


def _parts(values: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the pairs of `same`, 1 or 0, and over the others."""
    near = torch.dot(values.flatten(), same.flatten())
    return near, values.sum() - near


def triplet_hinges(distances: Tensor, labels: Tensor, margin: float) -> Hinges:
    """[d_ap - d_an + margin]+ of all triplets of a batch: distances [b, b], rows are anchors; labels int64 [b].

    In O(b^2 log b) time and O(b^2) memory. The sum is linear in the distances: d_ap counts once for every negative
    that violates the pair, -d_an once for every positive. A negative's violated positives are those beyond its place
    among the anchor's sorted positives; counting the places gives the same for the positives.
    """
    positive, negative = positive_mask(labels), negative_mask(labels)
    positives = positive.sum(1, keepdim=True)
    # Positives nearest first, filled up with infinity, which no negative passes.
    ranked = distances.masked_fill(~positive, torch.inf).topk(int(positives.max()), dim=1, largest=False).values
    with torch.no_grad():
        passed = torch.searchsorted(ranked, distances - margin, right=True)
        violated = (positives - passed).masked_fill(~negative, 0).to(distances.dtype)
        places = ranked.new_zeros(len(ranked), ranked.shape[1] + 1)
        violating = places.scatter_add(1, passed, negative.to(ranked.dtype)).cumsum(1)[:, :-1]
        active = violated.sum()
    total = (violating * ranked.masked_fill(ranked.isinf(), 0)).sum() - (violated * distances).sum() + margin * active
    return Hinges(total, active, (positives * negative.sum(1, keepdim=True)).sum())
