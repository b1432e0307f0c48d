"""Supervised contrastive loss (Khosla et al. 2020, Supervised Contrastive Learning, eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import functional
from training.functional import check_batch, positive_mask, products


class SupCon(nn.Module):
    """Mean over anchors, mean over their positives, of -log(exp(s_ap / T) / sum_{x != a} exp(s_ax / T)); s: cosines.

    Anchors without a positive are left out. Temperature T 0.1: the paper.
    """

    def __init__(self, classes: int, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels)
        positive = positive_mask(labels)
        others = ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        logits = products(embeddings) / self.temperature
        positives = positive.sum(1)
        own = (logits * positive).sum(1) / positives.clamp(min=1)
        return functional.masked_mean(functional.masked_logsumexp(logits, others) - own, positives > 0)
