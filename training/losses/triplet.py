"""Triplet loss (Schroff et al. 2015, FaceNet, section 3.1).

L = mean_(a,p,n) [d_ap - d_an + margin]+
"""

from __future__ import annotations

from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Triplets, hinges, triplet_hinges
from training.losses.base import MetricLoss


class TripletMarginLoss(MetricLoss):
    """Triplet loss of Euclidean distances (Musgrave et al. 2020, DiVA) or of their squares.

    Args:
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        squared: Compare squared distances, as in Schroff et al., Sharing Matters and the code published with
            Revisiting.
        active_only: Average over the terms above zero only (Reality Check). False: over all (Revisiting).
    """

    tuples = Triplets
    joins_pairs = True
    compares_references = True

    def __init__(self, margin: float = 0.05, *, squared: bool = False, active_only: bool = True) -> None:
        super().__init__()
        self.margin, self.squared, self.active_only = margin, squared, active_only

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar, over the triplets, or over all of the batch."""
        if tuples is None:
            terms = triplet_hinges(self._power(batch.distances()), batch.positive, batch.negative, self.margin)
        else:
            positive, negative = batch.triplet_distances(tuples)
            terms = hinges(self._power(positive) - self._power(negative) + self.margin)
        self.last_terms = (terms.detach(),)
        return terms.mean(self.active_only)

    def _power(self, values: Tensor) -> Tensor:
        return values.square() if self.squared else values
