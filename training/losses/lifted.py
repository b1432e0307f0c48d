"""Generalised lifted structure loss (Hermans et al. 2017, In Defense of the Triplet Loss, section 2)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from training import functional
from training.functional import check_batch, distances, mean_norm, negative_mask, positive_mask


class Lifted(nn.Module):
    """Mean over anchors of [log sum_p exp(d_ap) + log sum_n exp(margin - d_an)]+, plus nu * mean |psi|^2.

    d is the Euclidean distance of embeddings psi that are NOT normalised. Anchors without a positive or without a
    negative are left out. Constants of Roth et al. 2020, Revisiting, appendix A: margin 1, nu 0.005.
    squared_norm=False: nu * mean |psi|, as in the code published with it.
    """

    normalised = False

    def __init__(self, classes: int, margin: float = 1.0, nu: float = 0.005, squared_norm: bool = True) -> None:
        super().__init__()
        self.margin, self.nu, self.squared_norm = margin, nu, squared_norm

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of raw embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels)
        positive, negative = positive_mask(labels), negative_mask(labels)
        every = distances(embeddings)
        pulled = functional.masked_logsumexp(every, positive)
        pushed = functional.masked_logsumexp(self.margin - every, negative)
        lifted = functional.masked_mean(relu(pulled + pushed), positive.any(1) & negative.any(1))
        return lifted + self.nu * mean_norm(embeddings, self.squared_norm)
