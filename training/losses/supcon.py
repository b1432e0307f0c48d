"""Supervised contrastive loss (Khosla et al. 2020, Supervised Contrastive Learning, eq. 2).

L = -mean_a mean_p log(exp(s_ap / T) / sum_{x != a} exp(s_ax / T))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import functional
from training.functional import check_batch, positive_mask


class SupConLoss(nn.Module):
    """Supervised contrastive loss over all pairs of a batch; anchors without a positive are left out.

    Args:
        classes: Number of training classes; not used.
        temperature: T; 0.1 in the paper.
    """

    def __init__(self, classes: int, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positive = positive_mask(labels)
        off_diagonal = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        logits = embeddings @ embeddings.T / self.temperature
        positives = positive.sum(1)
        mean_positive = (logits * positive).sum(1) / positives.clamp(min=1)
        return functional.masked_mean(functional.masked_logsumexp(logits, off_diagonal) - mean_positive, positives > 0)
