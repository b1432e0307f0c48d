"""Contrastive loss (Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping).

    L = mean_(a,p) [d_ap - pos_margin]+ + mean_(a,n) [neg_margin - d_an]+

Terms are linear in the distance instead of squared, as in Roth et al. 2020 and Musgrave et al. 2020.
"""

from __future__ import annotations

from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Pairs, hinges
from training.losses.base import MetricLoss


class ContrastiveLoss(MetricLoss):
    """Hinge losses of the distances of positive and of negative pairs.

    Args:
        pos_margin: 0 in Roth et al. 2020, Revisiting, appendix A, with pairs from distance-weighted triplets.
        neg_margin: 1 in the same place. Musgrave et al. 2020, Reality Check, searches both margins.
        active_only: Average over the terms above zero only (Reality Check). False: over all (Revisiting).
    """

    tuples = Pairs
    compares_references = True

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, *, active_only: bool = True) -> None:
        super().__init__()
        self.pos_margin, self.neg_margin, self.active_only = pos_margin, neg_margin, active_only

    def compute(self, batch: EmbeddingBatch, tuples: Pairs | None) -> Tensor:
        """Return the loss, a scalar, over the pairs, or over all of the batch."""
        if tuples is None:
            values = self.distances(batch)
            near = hinges(values[batch.positive_pairs()] - self.pos_margin)
            far = hinges(self.neg_margin - values, batch.negative)
        else:
            near = hinges(self.pair_distances(batch, tuples.anchors_p, tuples.positives) - self.pos_margin)
            far = hinges(self.neg_margin - self.pair_distances(batch, tuples.anchors_n, tuples.negatives))
        self.last_terms = near.detach(), far.detach()
        return near.mean(self.active_only) + far.mean(self.active_only)

    def distances(self, batch: EmbeddingBatch) -> Tensor:
        """Return all distances [b, m] of a batch."""
        return batch.distances()

    def pair_distances(self, batch: EmbeddingBatch, i: Tensor, j: Tensor) -> Tensor:
        """Return the distances [t] of index pairs."""
        return batch.pair_distances(i, j)
