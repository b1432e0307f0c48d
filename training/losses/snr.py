"""Signal-to-noise ratio distance in triplet and contrastive form (Yuan et al. 2019, Signal-to-Noise Ratio: A Robust
Distance Metric for Deep Metric Learning)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from training.functional import (
    Pairs,
    Triplets,
    check_batch,
    hinges,
    inverse_power,
    require_triplets,
    snr_contrast,
    to_pairs,
    triplet_hinges,
    with_transpose,
)


class SNRTriplet(nn.Module):
    """Mean over triplets of [d_ap - d_an + margin]+ plus nu * mean_i |sum_k phi_ik|.

    d_ax = Var(phi_a - phi_x) / Var(phi_a), variances over the dimensions. Constants of Roth et al. 2020, Revisiting,
    appendix A: margin 0.2, nu 0.005; the code published with it has nu 0 with distance-weighted mining. active_only:
    the mean over the terms above zero only, as in that code (there NaN where none is: not copied).
    """

    def __init__(self, classes: int, margin: float = 0.2, nu: float = 0.005, active_only: bool = False) -> None:
        super().__init__()
        self.margin, self.nu, self.active_only = margin, nu, active_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every triplet of the batch counts."""
        check_batch(embeddings, labels)
        if tuples is None:
            terms = triplet_hinges(snr_distances(embeddings), labels, self.margin)
        else:
            anchors, positives, negatives = require_triplets(tuples)
            positive = snr_pair_distances(embeddings, anchors, positives)
            negative = snr_pair_distances(embeddings, anchors, negatives)
            terms = hinges(positive - negative + self.margin)
        return terms.mean(self.active_only) + self.nu * mean_penalty(embeddings)


class SNRContrastive(nn.Module):
    """Mean over positive pairs of [d_ap - positive_margin]+ plus mean over negative pairs of [negative_margin - d_an]+
    plus nu * mean_i |sum_k phi_ik|; d as in `SNRTriplet`, not symmetric.

    Musgrave et al. 2020, Reality Check, searches both margins and nu, with active_only: means over the terms above
    zero only.
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
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Without tuples every pair of the batch counts."""
        check_batch(embeddings, labels)
        if tuples is None:
            margins = self.positive_margin, self.negative_margin
            return snr_contrast(embeddings, labels, *margins, self.nu, self.active_only)
        pairs = to_pairs(tuples)
        near = hinges(snr_pair_distances(embeddings, pairs.anchors_p, pairs.positives) - self.positive_margin)
        far = hinges(self.negative_margin - snr_pair_distances(embeddings, pairs.anchors_n, pairs.negatives))
        return near.mean(self.active_only) + far.mean(self.active_only) + self.nu * mean_penalty(embeddings)


def snr_distances(embeddings: Tensor) -> Tensor:
    """[b, b]: Var(e_i - e_j) / Var(e_i) of rows [b, d], from one matrix product. A row without variance: 0."""
    result: Tensor = _SNRDistances.apply(embeddings)
    return result


class _SNRDistances(torch.autograd.Function):
    """d_ij = 1 + (|c_j|^2 - 2 c_i.c_j) / |c_i|^2 of centred rows; its gradient takes one more product instead of two.

    With A_ij = 2 gradient_ij / |c_i|^2 the gradient of c_k is c_k (sum_j (A_jk + A_kj - A_kj d_kj)) less
    sum_j (A_kj + A_jk) c_j: the last two terms of the sum are what the quotient's denominator adds. It is a sum of
    centred rows, so that centring leaves it as it is.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        centred = embeddings - embeddings.mean(1, keepdim=True)
        power = centred.square().sum(1)
        inverse = inverse_power(power)[:, None]
        result = torch.addmm(power, centred, centred.T, alpha=-2).mul_(inverse).add_((inverse > 0).to(power.dtype))
        ctx.save_for_backward(centred, inverse, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        centred, inverse, result = ctx.saved_tensors
        scaled = gradient * (2 * inverse)
        both = with_transpose(scaled)
        weights = both.sum(1, keepdim=True) - scaled.mul_(result).sum(1, keepdim=True)
        return torch.addmm(centred * weights, both, centred, alpha=-1)


def snr_pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """[t]: Var(e_i - e_j) / Var(e_i) for index pairs, int64 [t]. A row i without variance: 0."""
    centred = embeddings - embeddings.mean(1, keepdim=True)
    noise = (centred.index_select(0, i) - centred.index_select(0, j)).square().sum(1)
    return noise * inverse_power(centred.square().sum(1)).index_select(0, i)


def mean_penalty(embeddings: Tensor) -> Tensor:
    """mean_i |sum_k e_ik|, a scalar: what keeps the mean over dimensions at zero, where the distance is blind to it."""
    return embeddings.sum(1).abs().mean()
