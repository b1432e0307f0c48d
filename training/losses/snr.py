"""Signal-to-noise ratio losses (Yuan et al. 2019, Signal-to-Noise Ratio: A Robust Distance Metric).

d_ij = Var(phi_i - phi_j) / Var(phi_i), variances over the dimensions; d is not symmetric
L_triplet     = mean_(a,p,n) [d_ap - d_an + margin]+ + nu * mean_i |sum_k phi_ik|
L_contrastive = mean_(a,p) [d_ap - positive_margin]+ + mean_(a,n) [negative_margin - d_an]+
    + nu * mean_i |sum_k phi_ik|
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import (
    HingeLoss,
    Pairs,
    Triplets,
    check_batch,
    hinges,
    pair_contrast,
    require_triplets,
    to_pairs,
    triplet_hinges,
)


class SNRTripletLoss(HingeLoss):
    """Triplet loss of SNR distances, with a penalty on the mean of each embedding.

    Args:
        classes: Number of training classes; not used.
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        nu: Weight of the penalty; 0.005 in the same place, 0 with distance-weighted mining in the code published with
            it.
        active_only: Average over the terms above zero only, as in that code. (Without any it gives NaN; this is not
            copied.).
    """

    def __init__(self, classes: int, margin: float = 0.2, nu: float = 0.005, active_only: bool = False) -> None:
        super().__init__()
        self.margin, self.nu, self.active_only = margin, nu, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every triplet of the batch counts.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        if tuples is None:
            terms = triplet_hinges(snr_distances(embeddings), labels, self.margin)
        else:
            anchors, positives, negatives = require_triplets(tuples)
            positive = _snr_pair_distances(embeddings, anchors, positives)
            negative = _snr_pair_distances(embeddings, anchors, negatives)
            terms = hinges(positive - negative + self.margin)
        self.last_terms = (terms.detach(),)
        return terms.mean(self.active_only) + self.nu * _mean_penalty(embeddings)


class SignalToNoiseRatioContrastiveLoss(HingeLoss):
    """Contrastive loss of SNR distances, with a penalty on the mean of each embedding.

    Args:
        classes: Number of training classes; not used.
        positive_margin: Musgrave et al. 2020, Reality Check, searches both margins and nu.
        negative_margin: See positive_margin.
        nu: Weight of the penalty.
        active_only: Average over the terms above zero only (Reality Check).
    """

    def __init__(
        self,
        classes: int,
        positive_margin: float = 0.0,
        negative_margin: float = 1.0,
        nu: float = 0.005,
        active_only: bool = False,
    ) -> None:
        super().__init__()
        self.positive_margin, self.negative_margin = positive_margin, negative_margin
        self.nu, self.active_only = nu, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | Pairs | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every pair of the batch counts.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        if tuples is None:
            margins = self.positive_margin, self.negative_margin
            value, terms = pair_contrast(snr_distances(embeddings), labels, *margins, self.active_only)
            self.last_terms = (terms,)
            return value + self.nu * _mean_penalty(embeddings)
        pairs = to_pairs(tuples)
        near = hinges(_snr_pair_distances(embeddings, pairs.anchors_p, pairs.positives) - self.positive_margin)
        far = hinges(self.negative_margin - _snr_pair_distances(embeddings, pairs.anchors_n, pairs.negatives))
        self.last_terms = near.detach(), far.detach()
        return near.mean(self.active_only) + far.mean(self.active_only) + self.nu * _mean_penalty(embeddings)


def snr_distances(embeddings: Tensor) -> Tensor:
    """Return Var(e_i - e_j) / Var(e_i), [b, b], of rows [b, d]; 0 for a row without variance.

    By one product of centred rows c: d_ij = 1 + (|c_j|^2 - 2 c_i.c_j) / |c_i|^2.
    """
    centred = embeddings - embeddings.mean(1, keepdim=True)
    power = centred.square().sum(1)
    inverse = _inverse(power)[:, None]
    return torch.addmm(power, centred, centred.T, alpha=-2) * inverse + (inverse > 0)


def _snr_pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Return Var(e_i - e_j) / Var(e_i), [t], for index pairs, int64 [t]; 0 for a row i without variance."""
    centred = embeddings - embeddings.mean(1, keepdim=True)
    noise = (centred.index_select(0, i) - centred.index_select(0, j)).square().sum(1)
    return noise * _inverse(centred.square().sum(1)).index_select(0, i)


def _mean_penalty(embeddings: Tensor) -> Tensor:
    """Return mean_i |sum_k e_ik|, a scalar that keeps means over dimensions at zero: the distance ignores them."""
    return embeddings.sum(1).abs().mean()


def _inverse(power: Tensor) -> Tensor:
    """Return 1 / power; 0 for a row of power 0."""
    tiny = torch.finfo(power.dtype).eps
    return (power > tiny) / power.clamp(min=tiny)
