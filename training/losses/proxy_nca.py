"""ProxyNCA (Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import shift_target_logits, target_cosines
from zoo.errors import RecipeError


class ProxyNCA(nn.Module):
    """-log(exp(-|s phi - s p_y|^2) / sum_{z != y} exp(-|s phi - s p_z|^2)), mean over samples; p: unit proxies.

    Constants of Roth et al. 2020, Revisiting, appendix A: scale s 3, proxies learnt at rate 5e-4 from normal numbers
    over 8. positive_in_denominator: the sum includes z = y, as in pytorch-metric-learning, thus in Musgrave et al.
    2020, Reality Check, whose scale is s^2.
    """

    def __init__(self, classes: int, dim: int, scale: float = 3.0, positive_in_denominator: bool = False) -> None:
        super().__init__()
        if classes < 2:
            raise RecipeError("loss 'proxy-nca' compares classes: it needs at least two of them, not 1.")
        self.scale, self.positive_in_denominator = scale, positive_in_denominator
        self.proxies = nn.Parameter(torch.randn(classes, dim) / 8)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, len(self.proxies))
        # -|s phi - s p|^2 = 2 s^2 phi.p - 2 s^2 for unit vectors; the constant cancels.
        scaled, proxies = 2 * self.scale**2 * embeddings, normalize(self.proxies, dim=1)
        logits = scaled @ proxies.T
        if self.positive_in_denominator:
            return cross_entropy(logits, labels)
        others = shift_target_logits(logits, labels, -torch.inf).logsumexp(1)
        return (others - target_cosines(scaled, proxies, labels)).mean()
