"""Supervised contrastive loss (Khosla et al. 2020, Supervised Contrastive Learning, eq. 2).

L = -mean_a mean_p log(exp(s_ap / T) / sum_{x != a} exp(s_ax / T))
"""

from __future__ import annotations

from torch import Tensor

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import MetricLoss


class SupConLoss(MetricLoss):
    """Supervised contrastive loss over pairs; anchors without a positive are left out.

    Args:
        temperature: T; 0.1 in the paper.
    """

    tuples = Pairs
    compares_references = True

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def compute(self, batch: EmbeddingBatch, tuples: Pairs | None) -> Tensor:
        """Return the loss, a scalar, over the pairs, or over all of the batch; x runs over an anchor's pairs."""
        positive, negative = batch.masks(tuples)
        logits = batch.cosines() / self.temperature
        positives = positive.sum(1)
        mean_positive = (logits * positive).sum(1) / positives.clamp(min=1)
        compared = functional.masked_logsumexp(logits, positive | negative)
        return functional.masked_mean(compared - mean_positive, positives > 0)
