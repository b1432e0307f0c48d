"""Proxy-Anchor loss (Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning).

    L = mean_{p in batch} log(1 + sum_{x of p} exp(-alpha (s_xp - delta)))
        + mean_p log(1 + sum_{x not of p} exp(alpha (s_xp + delta)))

The first mean is over the proxies p of classes in the batch, the second over all proxies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from training.functional import check_batch
from training.losses.proxies import shift_target_logits, target_cosines


class ProxyAnchorLoss(nn.Module):
    """Proxy-Anchor loss with one learnt proxy per class.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        alpha: Scale; 32 in the paper.
        delta: Margin; 0.1 in the paper. Proxies start normal with variance 2 / classes, as in its code.
    """

    def __init__(self, classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        super().__init__()
        self.alpha, self.delta = alpha, delta
        self.proxies = nn.Parameter(torch.randn(classes, dim) * (2 / classes) ** 0.5)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, len(self.proxies))
        scaled, proxies = self.alpha * embeddings, normalize(self.proxies, dim=1)
        targets = self.alpha * self.delta - target_cosines(scaled, proxies, labels)
        # A large negative number removes a proxy's own samples. With -inf the column of a class that has the whole
        # batch would have no gradient.
        masked = shift_target_logits(scaled @ proxies.T, labels, torch.finfo(targets.dtype).min / 2)
        non_targets = masked + self.alpha * self.delta
        return softplus(_logsumexp_by_class(targets, labels)).mean() + softplus(non_targets.logsumexp(0)).mean()


def _logsumexp_by_class(values: Tensor, labels: Tensor) -> Tensor:
    """Return log of the sum of exp(values) over the samples of each class in the batch; values and labels are [b]."""
    present, rows = labels.unique(return_inverse=True)
    top = values.detach().new_full(present.shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    return top + torch.zeros_like(top).index_add(0, rows, (values - top[rows]).exp()).log()
