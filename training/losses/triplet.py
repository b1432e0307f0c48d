"""Triplet loss (Schroff et al. 2015, FaceNet, section 3.1).

L = mean_(a,p,n) [d_ap - d_an + margin]+
"""

from __future__ import annotations

from torch import Tensor

from training.functional import (
    HingeLoss,
    Triplets,
    check_batch,
    distances,
    hinges,
    require_triplets,
    triplet_distances,
    triplet_hinges,
)


class TripletMarginLoss(HingeLoss):
    """Triplet loss of Euclidean distances (Musgrave et al. 2020, DiVA) or of their squares.

    Args:
        classes: Number of training classes; not used.
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        squared: Compare squared distances, as in Schroff et al., Sharing Matters and the code published with
            Revisiting.
        active_only: Average over the terms above zero only (Reality Check).
    """

    def __init__(self, classes: int, margin: float = 0.2, squared: bool = False, active_only: bool = False) -> None:
        super().__init__()
        self.margin, self.squared, self.active_only = margin, squared, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every triplet of the batch counts.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        if tuples is None:
            terms = triplet_hinges(self._power(distances(embeddings)), labels, self.margin)
        else:
            positive, negative = triplet_distances(embeddings, *require_triplets(tuples))
            terms = hinges(self._power(positive) - self._power(negative) + self.margin)
        self.last_terms = (terms.detach(),)
        return terms.mean(self.active_only)

    def _power(self, values: Tensor) -> Tensor:
        return values.square() if self.squared else values
