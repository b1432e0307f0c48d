"""Supervised contrastive loss (Khosla et al. 2020, Supervised Contrastive Learning, eq. 2).

L = -mean_a mean_p log(exp(s_ap / T) / sum_{x != a} exp(s_ax / T))
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import ElementLoss
from training.pml import Parts


class SupConLoss(ElementLoss):
    """Supervised contrastive loss over pairs; anchors without a positive are left out.

    Args:
        temperature: T; 0.1 in the paper.
        parts: See `MetricLoss`.
    """

    main_constant = "temperature"
    takes_distance = True
    tuples = Pairs
    compares_references = True

    def __init__(self, temperature: float = 0.1, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.temperature = temperature

    def elements(self, batch: EmbeddingBatch, tuples: Pairs | None) -> tuple[Tensor, Tensor]:
        """Return the terms [b] and which of them count, over the pairs, or all of the batch; x runs over these."""
        positive, negative = batch.masks(tuples)
        logits = batch.cosines() / self.temperature
        positives = positive.sum(1)
        mean_positive = (logits * positive).sum(1) / positives.clamp(min=1)
        compared = functional.masked_logsumexp(logits, positive | negative)
        return compared - mean_positive, positives > 0
