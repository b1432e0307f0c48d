"""Proxy-Anchor loss (Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from training.functional import check_batch
from training.losses.proxies import shift_target_logits, target_cosines


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
        check_batch(embeddings, labels, len(self.proxies))
        scaled, proxies = self.alpha * embeddings, normalize(self.proxies, dim=1)
        own = self.alpha * self.delta - target_cosines(scaled, proxies, labels)
        # Own samples fall out; not by -inf, whose column of a class that has the whole batch has no gradient.
        others = (
            shift_target_logits(scaled @ proxies.T, labels, torch.finfo(own.dtype).min / 2) + self.alpha * self.delta
        )
        return softplus(logsumexp_by_class(own, labels)).mean() + softplus(others.logsumexp(0)).mean()


def logsumexp_by_class(values: Tensor, labels: Tensor) -> Tensor:
    """log of the sum of exp(values) over each class's samples, for the classes in the batch; values and labels [b]."""
    present, rows = labels.unique(return_inverse=True)
    top = values.detach().new_full(present.shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    return top + torch.zeros_like(top).index_add(0, rows, (values - top[rows]).exp()).log()
