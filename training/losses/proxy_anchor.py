"""Proxy-Anchor loss (Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from training import masked
from training.losses.proxies import cosines


class ProxyAnchor(nn.Module):
    """Mean over proxies p of classes in the batch of log(1 + sum_{x of p} exp(-alpha (s_xp - delta)))
    plus mean over all proxies of log(1 + sum_{x not of p} exp(alpha (s_xp + delta))); s: cosines.

    Constants of the paper: alpha 32, delta 0.1; proxies from normal numbers of variance 2 / classes (its code).
    """

    def __init__(self, classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        super().__init__()
        self.alpha, self.delta = alpha, delta
        self.proxies = nn.Parameter(torch.randn(classes, dim) * (2 / classes) ** 0.5)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        similarities = cosines(embeddings, self.proxies)
        positive = one_hot(labels, len(self.proxies)).bool()
        pulled = softplus(masked.logsumexp(-self.alpha * (similarities - self.delta), positive, dim=0))
        pushed = softplus(masked.logsumexp(self.alpha * (similarities + self.delta), ~positive, dim=0))
        return masked.mean(pulled, positive.any(0)) + pushed.mean()
