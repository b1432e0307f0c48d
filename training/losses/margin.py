"""Margin loss (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.2, eq. 10)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from training.distances import pair_distances
from training.tuples import Triplets, negative_mask, positive_mask


class Margin(nn.Module):
    """[d_ap - beta_ya + m]+ + [beta_ya - d_an + m]+, summed and divided by the number of terms above zero.

    `beta` is learnt, one a class, from the initial value. d is the Euclidean distance of unit embeddings.
    Constants of Roth et al. 2020, Revisiting, appendix A: margin 0.2, beta 1.2 or 0.6.
    """

    def __init__(self, classes: int, margin: float = 0.2, beta: float = 1.2) -> None:
        super().__init__()
        self.margin = margin
        self.beta = nn.Parameter(torch.full((classes,), float(beta)))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every pair of the batch counts.

        Zero, with zero gradients, where no term is above zero.
        """
        positives, negatives = _pairs(labels, tuples)
        above = relu(pair_distances(embeddings, *positives) - self.beta[labels[positives[0]]] + self.margin)
        below = relu(self.beta[labels[negatives[0]]] - pair_distances(embeddings, *negatives) + self.margin)
        active = (above > 0).sum() + (below > 0).sum()
        return (above.sum() + below.sum()) / active.clamp(min=1)


def _pairs(labels: Tensor, tuples: Triplets | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(anchor, other) index pairs of the positive and of the negative terms."""
    if tuples is not None:
        return (tuples.anchors, tuples.positives), (tuples.anchors, tuples.negatives)
    positives, negatives = positive_mask(labels).nonzero(as_tuple=True), negative_mask(labels).nonzero(as_tuple=True)
    return (positives[0], positives[1]), (negatives[0], negatives[1])
