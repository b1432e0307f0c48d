"""Sums of hinge terms [x]+ with what is needed to average them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
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
    # Numbers, not bools: they are several times as fast to multiply and to count.
    kept = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    terms = relu(values)
    return Hinges((terms * kept).sum(), (terms.detach().sign() * kept).sum(), kept.sum())


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
