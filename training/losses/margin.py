"""Margin loss (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.2, eq. 10).

    L = sum ([d_ap - beta_y + margin]+ + [beta_y - d_an + margin]+) / (number of terms above zero)

beta_y is the boundary for the class y of the anchor.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from training.batch import EmbeddingBatch, all_triplets
from training.functional import Hinges, Triplets, hinges
from training.losses.base import MetricLoss
from training.pml import Parts, Terms, sum_of_quotients


class MarginLoss(MetricLoss):
    """Margin loss with boundaries beta, which can be learnt for each class.

    Args:
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        beta: The boundaries, or their initial value; 1.2 or 0.6 in the same place.
        learn_beta: Learn the boundaries, as the paper and Revisiting do.
        num_classes: Number of training classes; without it there is one boundary for all.
        per_class: Have one boundary per class; False: one for all classes.
        by_triplets: Without tuples, count every triplet of the batch, as in Musgrave et al. 2020, Reality Check: a
            positive pair once per negative of its anchor, and a negative pair once per positive. False: count every
            pair once.
        count_tuples: Divide by the number of triplets with a term above zero, as the code published with Revisiting
            does in PyTorch 1.2 or later. It has no effect without tuples.
        nu: Weight of the boundaries that are learnt, of the anchors of the counted terms, as a penalty (eq. 10).
        parts: See `MetricLoss`.
    """

    main_constant = "margin"
    takes_distance = True
    tuples = Triplets
    joins_pairs = True
    compares_references = True
    beta: Tensor

    def __init__(
        self,
        margin: float = 0.2,
        *,
        beta: float = 1.2,
        learn_beta: bool = False,
        num_classes: int | None = None,
        per_class: bool = True,
        by_triplets: bool = True,
        count_tuples: bool = False,
        nu: float = 0.0,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.margin, self.learn_beta, self.num_classes, self.per_class = margin, learn_beta, num_classes, per_class
        self.by_triplets, self.count_tuples, self.nu = by_triplets, count_tuples, nu
        betas = torch.full((num_classes if per_class and num_classes else 1,), float(beta))
        if learn_beta:
            self.beta = nn.Parameter(betas)
        else:
            self.register_buffer("beta", betas, persistent=False)

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar; 0, with zero gradients, if no term is above zero."""
        if self.nu:
            return sum_of_quotients(self.terms(batch, tuples))
        near, far, active = self._pair_terms(batch) if tuples is None else self._triplet_terms(batch, tuples)
        self.last_terms = near.detach(), far.detach()
        return (near.total + far.total) / active.clamp(min=1)

    def terms(self, batch: EmbeddingBatch, tuples: Triplets | None) -> dict[str, Terms]:
        """Return the terms of the triplets, for a reducer; memory is O(triplets)."""
        triplets = all_triplets(batch) if tuples is None else tuples
        boundaries = self._boundaries(batch.labels[triplets.anchors])
        levels = batch.threshold(boundaries)
        positives, negatives = batch.triplet_distances(triplets)
        near, far = relu(positives - levels + self.margin), relu(levels - negatives + self.margin)
        active = (near > 0).sum() + (far > 0).sum()
        terms = {"margin_loss": Terms(near + far, tuple(triplets), "triplet", active)}
        if not self.nu or not self.learn_beta:
            return terms
        if len(self.beta) == 1:
            return {**terms, "beta_reg_loss": Terms(self.nu * self.beta, None, "already_reduced")}
        return {**terms, "beta_reg_loss": Terms(self.nu * boundaries, triplets.anchors, "element", active)}

    def _pair_terms(self, batch: EmbeddingBatch) -> tuple[Hinges, Hinges, Tensor]:
        offsets = batch.distances() - batch.threshold(self._boundaries(batch.labels))[:, None]
        positive, negative = batch.positive, batch.negative
        if self.by_triplets:
            positive, negative = positive * negative.sum(1, keepdim=True), negative * positive.sum(1, keepdim=True)
        near, far = hinges(offsets + self.margin, positive), hinges(self.margin - offsets, negative)
        return near, far, near.active + far.active

    def _triplet_terms(self, batch: EmbeddingBatch, triplets: Triplets) -> tuple[Hinges, Hinges, Tensor]:
        boundaries = batch.threshold(self._boundaries(batch.labels[triplets.anchors]))
        positives, negatives = batch.triplet_distances(triplets)
        above, below = positives - boundaries + self.margin, boundaries - negatives + self.margin
        near, far = hinges(above), hinges(below)
        return near, far, ((above > 0) | (below > 0)).sum() if self.count_tuples else near.active + far.active

    def _boundaries(self, labels: Tensor) -> Tensor:
        """Return the boundary of each sample's class, or the only one."""
        return self.beta[labels] if len(self.beta) > 1 else self.beta.expand(len(labels))
