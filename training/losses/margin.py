"""Margin loss (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.2, eq. 10).

    L = sum ([d_ap - beta_y + margin]+ + [beta_y - d_an + margin]+) / (number of terms above zero)

beta_y is a learnt boundary for the class y of the anchor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.functional import (
    HingeLoss,
    Triplets,
    check_batch,
    distances,
    hinges,
    negative_mask,
    positive_mask,
    require_triplets,
    triplet_distances,
)


class MarginLoss(HingeLoss):
    """Margin loss with learnt class boundaries beta.

    Args:
        classes: Number of training classes.
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        beta: Initial value of the boundaries; 1.2 or 0.6 in the same place.
        per_class: Learn one boundary per class; False: one for all classes.
        by_triplets: Without tuples, count every triplet of the batch, as in Musgrave et al. 2020, Reality Check: a
            positive pair once per negative of its anchor, and a negative pair once per positive. False: count every
            pair once.
        count_tuples: Divide by the number of triplets with a term above zero, as the code published with Revisiting
            does in PyTorch 1.2 or later. It has no effect without tuples.
    """

    def __init__(
        self,
        classes: int,
        margin: float = 0.2,
        beta: float = 1.2,
        per_class: bool = True,
        by_triplets: bool = False,
        count_tuples: bool = False,
    ) -> None:
        super().__init__()
        self.margin, self.by_triplets, self.count_tuples = margin, by_triplets, count_tuples
        self.classes = classes
        self.beta = nn.Parameter(torch.full((classes if per_class else 1,), float(beta)))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every pair of the batch counts. The loss is 0, with zero gradients, if no term is above zero.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, self.classes)
        betas = self.beta.expand(self.classes)
        if tuples is None:
            offsets = distances(embeddings) - betas[labels][:, None]
            positive, negative = positive_mask(labels), negative_mask(labels)
            if self.by_triplets:
                positive, negative = (
                    positive * negative.sum(1, keepdim=True),
                    negative * positive.sum(1, keepdim=True),
                )
            near, far = hinges(offsets + self.margin, positive), hinges(self.margin - offsets, negative)
        else:
            beta = betas[labels[require_triplets(tuples).anchors]]
            positives, negatives = triplet_distances(embeddings, *tuples)
            above, below = positives - beta + self.margin, beta - negatives + self.margin
            near, far = hinges(above), hinges(below)
        self.last_terms = near.detach(), far.detach()
        active = near.active + far.active
        if tuples is not None and self.count_tuples:
            active = ((above > 0) | (below > 0)).sum()
        return (near.total + far.total) / active.clamp(min=1)
