"""Proxy-Anchor loss (Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning).

    L = mean_{p in batch} log(1 + sum_{x of p} exp(-alpha (s_xp - delta)))
        + mean_p log(1 + sum_{x not of p} exp(alpha (s_xp + delta)))

The first mean is over the proxies p of classes in the batch, the second over all proxies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from training.batch import EmbeddingBatch
from training.losses.base import MetricLoss, unit_vectors
from training.losses.proxies import shift_target_logits, target_cosines


class ProxyAnchorLoss(MetricLoss):
    """Proxy-Anchor loss with one learnt proxy per class.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        margin: delta; 0.1 in the paper. Proxies start normal with variance 2 / classes, as in its code.
        alpha: Scale; 32 in the paper.
    """

    def __init__(self, num_classes: int, embedding_size: int, margin: float = 0.1, alpha: float = 32.0) -> None:
        super().__init__()
        self.num_classes, self.embedding_size, self.margin, self.alpha = num_classes, embedding_size, margin, alpha
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size) * (2 / num_classes) ** 0.5)

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar."""
        scaled, proxies, labels = self.alpha * batch.rows, unit_vectors(self.proxies, batch.rows), batch.labels
        targets = self.alpha * self.margin - target_cosines(scaled, proxies, labels)
        # A large negative number removes a proxy's own samples. With -inf the column of a class that has the whole
        # batch would have no gradient.
        masked = shift_target_logits(scaled @ proxies.T, labels, torch.finfo(targets.dtype).min / 2)
        non_targets = masked + self.alpha * self.margin
        return softplus(_logsumexp_by_class(targets, labels)).mean() + softplus(non_targets.logsumexp(0)).mean()


def _logsumexp_by_class(values: Tensor, labels: Tensor) -> Tensor:
    """Return log of the sum of exp(values) over the samples of each class in the batch; values and labels are [b]."""
    present, rows = labels.unique(return_inverse=True)
    top = values.detach().new_full(present.shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    return top + torch.zeros_like(top).index_add(0, rows, (values - top[rows]).exp()).log()
