"""Contrastive loss (Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping).

    L = mean_(a,p) [d_ap - positive_margin]+ + mean_(a,n) [negative_margin - d_an]+

Terms are linear in the distance instead of squared, as in Roth et al. 2020 and Musgrave et al. 2020.
"""

from __future__ import annotations

from torch import Tensor

from training.functional import (
    HingeLoss,
    Pairs,
    Triplets,
    check_batch,
    distances,
    hinges,
    pair_contrast,
    pair_distances,
    to_pairs,
)


class ContrastiveLoss(HingeLoss):
    """Hinge losses of the distances of positive and of negative pairs.

    Args:
        classes: Number of training classes; not used.
        positive_margin: 0 in Roth et al. 2020, Revisiting, appendix A, with pairs from distance-weighted triplets.
        negative_margin: 1 in the same place. Musgrave et al. 2020, Reality Check, searches both margins.
        active_only: Average over the terms above zero only (Reality Check).
    """

    def __init__(
        self, classes: int, positive_margin: float = 0.0, negative_margin: float = 1.0, active_only: bool = False
    ) -> None:
        super().__init__()
        self.positive_margin, self.negative_margin, self.active_only = positive_margin, negative_margin, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | Pairs | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every pair of the batch counts.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        if tuples is None:
            margins = self.positive_margin, self.negative_margin
            value, terms = pair_contrast(distances(embeddings), labels, *margins, self.active_only)
            self.last_terms = (terms,)
            return value
        pairs = to_pairs(tuples)
        near = hinges(pair_distances(embeddings, pairs.anchors_p, pairs.positives) - self.positive_margin)
        far = hinges(self.negative_margin - pair_distances(embeddings, pairs.anchors_n, pairs.negatives))
        self.last_terms = near.detach(), far.detach()
        return near.mean(self.active_only) + far.mean(self.active_only)
