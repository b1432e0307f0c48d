"""Triplet loss (Schroff et al. 2015, FaceNet, section 3.1)."""

from __future__ import annotations

from torch import Tensor, nn

from training.functional import (
    Triplets,
    check_batch,
    distances,
    hinges,
    require_triplets,
    triplet_distances,
    triplet_hinges,
)


class Triplet(nn.Module):
    """Mean over triplets of [d_ap - d_an + margin]+.

    d is the Euclidean distance of unit embeddings, as in Musgrave et al. 2020 and DiVA; squared: its square, as in
    Schroff et al., Sharing Matters and the code published with Roth et al. 2020, Revisiting. active_only: the mean
    over the terms above zero only (Reality Check). Margin 0.2: Revisiting, appendix A.
    """

    def __init__(self, classes: int, margin: float = 0.2, squared: bool = False, active_only: bool = False) -> None:
        super().__init__()
        self.margin, self.squared, self.active_only = margin, squared, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every triplet of the batch counts."""
        check_batch(embeddings, labels)
        if tuples is None:
            return triplet_hinges(self._power(distances(embeddings)), labels, self.margin).mean(self.active_only)
        positive, negative = triplet_distances(embeddings, *require_triplets(tuples))
        return hinges(self._power(positive) - self._power(negative) + self.margin).mean(self.active_only)

    def _power(self, values: Tensor) -> Tensor:
        return values.square() if self.squared else values
