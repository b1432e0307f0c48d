"""Contrastive loss (Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping).

    L = mean_(a,p) [d_ap - pos_margin]+ + mean_(a,n) [neg_margin - d_an]+

Terms are linear in the distance instead of squared, as in Roth et al. 2020 and Musgrave et al. 2020.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import relu

from training.batch import EmbeddingBatch
from training.functional import Pairs, hinges
from training.losses.base import MetricLoss
from training.pml import Parts, Terms


class ContrastiveLoss(MetricLoss):
    """Hinge losses of the distances of positive and of negative pairs.

    Args:
        pos_margin: 0 in Roth et al. 2020, Revisiting, appendix A, with pairs from distance-weighted triplets.
        neg_margin: 1 in the same place. Musgrave et al. 2020, Reality Check, searches both margins.
        active_only: Average over the terms above zero only (Reality Check). False: over all (Revisiting).
        parts: See `MetricLoss`.
    """

    main_constant = "neg_margin"
    takes_distance = True
    tuples = Pairs
    compares_references = True

    def __init__(
        self, pos_margin: float = 0.0, neg_margin: float = 1.0, *, active_only: bool = True, **parts: Unpack[Parts]
    ) -> None:
        super().__init__(**parts)
        self.pos_margin, self.neg_margin, self.active_only = pos_margin, neg_margin, active_only

    def compute(self, batch: EmbeddingBatch, tuples: Pairs | None) -> Tensor:
        """Return the loss, a scalar, over the pairs, or over all of the batch."""
        near_margin, far_margin = batch.threshold(self.pos_margin), batch.threshold(self.neg_margin)
        if tuples is None:
            values = self.distances(batch)
            near = hinges(values[batch.positive_pairs()] - near_margin)
            far = hinges(far_margin - values, batch.negative)
        else:
            near = hinges(self.pair_distances(batch, tuples.anchors_p, tuples.positives) - near_margin)
            far = hinges(far_margin - self.pair_distances(batch, tuples.anchors_n, tuples.negatives))
        self.last_terms = near.detach(), far.detach()
        return near.mean(self.active_only) + far.mean(self.active_only)

    def terms(self, batch: EmbeddingBatch, tuples: Pairs | None) -> dict[str, Terms]:
        """Return the terms of positive and of negative pairs, for a reducer."""
        pairs = batch.all_pairs() if tuples is None else tuples
        positives, negatives = pairs[:2], pairs[2:]
        near = relu(self.pair_distances(batch, *positives) - batch.threshold(self.pos_margin))
        far = relu(batch.threshold(self.neg_margin) - self.pair_distances(batch, *negatives))
        return {"pos_loss": Terms(near, positives, "pos_pair"), "neg_loss": Terms(far, negatives, "neg_pair")}

    def distances(self, batch: EmbeddingBatch) -> Tensor:
        """Return all distances [b, m] of a batch."""
        return batch.distances()

    def pair_distances(self, batch: EmbeddingBatch, i: Tensor, j: Tensor) -> Tensor:
        """Return the distances [t] of index pairs."""
        return batch.pair_distances(i, j)
