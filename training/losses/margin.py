"""Margin loss (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.2, eq. 10)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.functional import (
    Triplets,
    check_batch,
    distances,
    hinges,
    negative_mask,
    positive_mask,
    require_triplets,
    triplet_distances,
)


class Margin(nn.Module):
    """[d_ap - beta_ya + m]+ + [beta_ya - d_an + m]+, summed and divided by the number of terms above zero.

    `beta` is learnt from the initial value, one a class or (per_class=False) one for all. d is the Euclidean distance
    of unit embeddings.
    Constants of Roth et al. 2020, Revisiting, appendix A: margin 0.2, beta 1.2 or 0.6.
    by_triplets: without tuples every triplet of the batch counts, so a positive pair once for each negative of its
    anchor and the reverse, as in Musgrave et al. 2020, Reality; else every pair, once.
    """

    def __init__(
        self, classes: int, margin: float = 0.2, beta: float = 1.2, per_class: bool = True, by_triplets: bool = False
    ) -> None:
        super().__init__()
        self.margin, self.by_triplets = margin, by_triplets
        self.classes = classes
        self.beta = nn.Parameter(torch.full((classes if per_class else 1,), float(beta)))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every pair of the batch counts.

        Zero, with zero gradients, where no term is above zero.
        """
        check_batch(embeddings, labels, self.classes)
        betas = self.beta.expand(self.classes)
        if tuples is None:
            # d - beta of the row's class
            every = distances(embeddings) - betas[labels][:, None]
            positive, negative = positive_mask(labels), negative_mask(labels)
            if self.by_triplets:
                positive, negative = (
                    positive * negative.sum(1, keepdim=True),
                    negative * positive.sum(1, keepdim=True),
                )
            near, far = hinges(every + self.margin, positive), hinges(self.margin - every, negative)
        else:
            beta = betas[labels[require_triplets(tuples).anchors]]
            of_positives, of_negatives = triplet_distances(embeddings, *tuples)
            near, far = hinges(of_positives - beta + self.margin), hinges(beta - of_negatives + self.margin)
        return (near.total + far.total) / (near.active + far.active).clamp(min=1)
