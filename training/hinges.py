"""Sums of hinge terms [x]+ with what is needed to average them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from training.tuples import negative_mask, positive_mask, positive_pairs


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
    """Every pair as a negative in a few passes over the matrix, which are all that this costs; positives by index."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, labels: Tensor, near: float, far: float, active_only: bool) -> Tensor:
        anchors, positives = positive_pairs(labels)
        places = anchors * len(labels) + positives
        pulled = (values.take(places) - near).relu_()
        pushed = (far - values).relu_().fill_diagonal_(0).put_(places, torch.zeros_like(pulled))
        total_near, total_far = pulled.sum(), pushed.sum()
        # Kept for the gradient: which terms are above zero.
        pulled, pushed = pulled.sign_(), pushed.sign_()
        of_near, of_far = len(places), len(labels) * (len(labels) - 1) - len(places)
        per_near, per_far = per_term(pulled, of_near, active_only), per_term(pushed, of_far, active_only)
        ctx.save_for_backward(pulled, pushed, places)
        ctx.per_near, ctx.per_far = per_near, per_far
        return total_near * per_near + total_far * per_far

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        pulled, pushed, places = ctx.saved_tensors
        weights = (pushed * (gradient * -ctx.per_far)).put_(places, pulled * (gradient * ctx.per_near))
        return weights, None, None, None, None


def per_term(active: Tensor, number: int, active_only: bool) -> Tensor | float:
    """One over the number of terms that a mean is over, all or those above zero (active, 1 or 0); 1 for none."""
    return 1 / active.sum().clamp(min=1) if active_only else 1 / max(1, number)


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
