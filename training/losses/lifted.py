"""Generalised lifted structure loss (Hermans et al. 2017, In Defense of the Triplet Loss, section 2).

    L = mean_a [log sum_p exp(d_ap - pos_margin) + log sum_n exp(neg_margin - d_an)]+ + nu * mean |psi|^2

d is the Euclidean distance of embeddings psi.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import relu

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import ElementLoss, norm_penalty
from training.pml import Parts, Terms


class GeneralizedLiftedStructureLoss(ElementLoss):
    """Lifted structure loss over pairs; anchors without a positive or without a negative are left out.

    Args:
        neg_margin: 1 in Roth et al. 2020, Revisiting, appendix A.
        pos_margin: 0 in the same place.
        nu: Weight of the penalty on the length; 0.005 in the same place.
        squared_norm: False penalises mean |psi|, as in the code published with Revisiting.
        normalize_embeddings: Scale embeddings to unit length; False in Revisiting.
        parts: See `MetricLoss`.
    """

    main_constant = "neg_margin"
    takes_distance = True
    tuples = Pairs
    compares_references = True

    def __init__(
        self,
        neg_margin: float = 1.0,
        pos_margin: float = 0.0,
        *,
        nu: float = 0.0,
        squared_norm: bool = True,
        normalize_embeddings: bool = True,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.neg_margin, self.pos_margin, self.nu, self.squared_norm = neg_margin, pos_margin, nu, squared_norm
        self.normalize_embeddings = normalize_embeddings

    def elements(self, batch: EmbeddingBatch, tuples: Pairs | None) -> tuple[Tensor, Tensor]:
        """Return the terms [b] and which of them count, over the pairs, or over all of the batch."""
        positive, negative = batch.masks(tuples)
        matrix = batch.distances()
        pulled = functional.masked_logsumexp(matrix - batch.threshold(self.pos_margin), positive)
        pushed = functional.masked_logsumexp(batch.threshold(self.neg_margin) - matrix, negative)
        return relu(pulled + pushed), positive.any(1) & negative.any(1)

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name: the penalty on the length, and those of regularizers."""
        return {**super().penalties(batch, embeddings), **norm_penalty(batch, self.nu, self.squared_norm)}
