"""Triplet loss (Schroff et al. 2015, FaceNet, section 3.1).

L = mean_(a,p,n) [d_ap - d_an + margin]+
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from training.batch import EmbeddingBatch, all_triplets
from training.functional import Triplets, hinges, triplet_hinges
from training.losses.base import MetricLoss
from training.pml import Parts, Terms


class TripletMarginLoss(MetricLoss):
    """Triplet loss of Euclidean distances (Musgrave et al. 2020, DiVA) or of their squares.

    Args:
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        squared: Compare squared distances, as in Schroff et al., Sharing Matters and the code published with
            Revisiting.
        active_only: Average over the terms above zero only (Reality Check). False: over all (Revisiting).
        swap: Compare with the distance of positive and negative, if it is smaller than that of anchor and negative
            (Balntas et al. 2016, section 3).
        smooth_loss: Have log(1 + exp(x)) in the place of [x]+ (Hermans et al. 2017).
        parts: See `MetricLoss`.
    """

    main_constant = "margin"
    takes_distance = True
    tuples = Triplets
    joins_pairs = True
    compares_references = True

    def __init__(
        self,
        margin: float = 0.05,
        *,
        squared: bool = False,
        active_only: bool = True,
        swap: bool = False,
        smooth_loss: bool = False,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.margin, self.squared, self.active_only = margin, squared, active_only
        self.swap, self.smooth_loss = swap, smooth_loss

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar, over the triplets, or over all of the batch."""
        if self.swap or self.smooth_loss:
            values = self.terms(batch, tuples)["loss"].values
            return hinges(values).mean(self.active_only)
        if tuples is None:
            terms = triplet_hinges(self._power(batch.distances()), batch.positive, batch.negative, self.margin)
        else:
            positive, negative = batch.triplet_distances(tuples)
            terms = hinges(self._power(positive) - self._power(negative) + self.margin)
        self.last_terms = (terms.detach(),)
        return terms.mean(self.active_only)

    def terms(self, batch: EmbeddingBatch, tuples: Triplets | None) -> dict[str, Terms]:
        """Return the terms of the triplets, for a reducer; memory is O(triplets)."""
        triplets = all_triplets(batch) if tuples is None else tuples
        positive, negative = map(self._power, batch.triplet_distances(triplets))
        if self.swap:
            others = self._power(batch.between_others(triplets.positives, triplets.negatives))
            negative = torch.minimum(negative, others)
        values = positive - negative + self.margin
        return {"loss": Terms(softplus(values) if self.smooth_loss else relu(values), tuple(triplets), "triplet")}

    def _power(self, values: Tensor) -> Tensor:
        return values.square() if self.squared else values
