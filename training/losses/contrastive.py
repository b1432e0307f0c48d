"""Contrastive loss (Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping)."""

from __future__ import annotations

from torch import Tensor, nn

from training.functional import Pairs, Triplets, check_batch, distances, hinges, pair_contrast, pair_distances, to_pairs


class Contrastive(nn.Module):
    """Mean over positive pairs of [d_ap - positive_margin]+ plus mean over negative pairs of [negative_margin - d_an]+.

    d is the Euclidean distance of unit embeddings. Constants of Roth et al. 2020, Revisiting, appendix A: margins 0
    and 1, pairs from distance-weighted triplets. active_only: both means over the terms above zero only (Musgrave et
    al. 2020, Reality Check, which searches both margins).
    """

    def __init__(
        self, classes: int, positive_margin: float = 0.0, negative_margin: float = 1.0, active_only: bool = False
    ) -> None:
        super().__init__()
        self.positive_margin, self.negative_margin, self.active_only = positive_margin, negative_margin, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | Pairs | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every pair of the batch counts."""
        check_batch(embeddings, labels)
        if tuples is None:
            margins = self.positive_margin, self.negative_margin
            return pair_contrast(distances(embeddings), labels, *margins, self.active_only)
        pairs = to_pairs(tuples)
        near = hinges(pair_distances(embeddings, pairs.anchors_p, pairs.positives) - self.positive_margin)
        far = hinges(self.negative_margin - pair_distances(embeddings, pairs.anchors_n, pairs.negatives))
        return near.mean(self.active_only) + far.mean(self.active_only)
