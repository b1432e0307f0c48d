"""Circle loss (Sun et al. 2020, Circle Loss: A Unified Perspective of Pair Similarity Optimization)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from training import functional
from training.functional import check_batch, negative_mask, positive_mask, products


class Circle(nn.Module):
    """log(1 + sum_n exp(gamma w_n (s_an - m)) sum_p exp(-gamma w_p (s_ap - 1 + m))), mean over anchors; s: cosines.

    The weights w_n = [s_an + m]+ and w_p = [1 + m - s_ap]+ pass no gradient. Anchors without a positive or without a
    negative are left out. Constants of the paper for fine-grained retrieval: margin m 0.4, gamma 80.
    """

    def __init__(self, classes: int, margin: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        self.margin, self.gamma = margin, gamma

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels)
        positive, negative = positive_mask(labels), negative_mask(labels)
        cosines = products(embeddings)
        still = cosines.detach()
        pull = -self.gamma * relu(1 + self.margin - still) * (cosines - 1 + self.margin)
        push = self.gamma * relu(still + self.margin) * (cosines - self.margin)
        terms = softplus(functional.masked_logsumexp(pull, positive) + functional.masked_logsumexp(push, negative))
        return functional.masked_mean(terms, positive.any(1) & negative.any(1))
