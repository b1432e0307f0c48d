"""Signal-to-noise ratio losses (Yuan et al. 2019, Signal-to-Noise Ratio: A Robust Distance Metric).

d_ij = Var(phi_i - phi_j) / Var(phi_i), variances over the dimensions; d is not symmetric
L_triplet     = mean_(a,p,n) [d_ap - d_an + margin]+ + nu * mean_i |sum_k phi_ik|
L_contrastive = mean_(a,p) [d_ap - pos_margin]+ + mean_(a,n) [neg_margin - d_an]+
    + nu * mean_i |sum_k phi_ik|
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Triplets, hinges, triplet_hinges
from training.losses.base import MetricLoss
from training.losses.contrastive import ContrastiveLoss
from training.pml import Parts, Terms


class SNRTripletLoss(MetricLoss):
    """Triplet loss of SNR distances, with a penalty on the mean of each embedding.

    Args:
        margin: 0.2 in Roth et al. 2020, Revisiting, appendix A.
        nu: Weight of the penalty; 0.005 in the same place, 0 with distance-weighted mining in the code published with
            it.
        active_only: Average over the terms above zero only, as in that code. (Without any it gives NaN; this is not
            copied.).
    """

    main_constant = "margin"
    tuples = Triplets
    joins_pairs = True
    compares_references = True

    def __init__(self, margin: float = 0.2, nu: float = 0.005, active_only: bool = False) -> None:
        super().__init__()
        self.margin, self.nu, self.active_only = margin, nu, active_only

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar, over the triplets, or over all of the batch."""
        if tuples is None:
            terms = triplet_hinges(snr_distances(batch), batch.positive, batch.negative, self.margin)
        else:
            positive = snr_pair_distances(batch, tuples.anchors, tuples.positives)
            negative = snr_pair_distances(batch, tuples.anchors, tuples.negatives)
            terms = hinges(positive - negative + self.margin)
        self.last_terms = (terms.detach(),)
        return terms.mean(self.active_only) + self.nu * _mean_penalty(batch.rows)


class SignalToNoiseRatioContrastiveLoss(ContrastiveLoss):
    """Contrastive loss of SNR distances, with a weight also a penalty on the mean of each embedding.

    Args:
        pos_margin: Musgrave et al. 2020, Reality Check, searches both margins and nu.
        neg_margin: See pos_margin.
        nu: Weight of the penalty.
        active_only: Average over the terms above zero only (Reality Check).
        parts: See `MetricLoss`.
    """

    takes_distance = False
    own_distance = "SNRDistance(power=1)"

    def __init__(
        self,
        pos_margin: float = 0.0,
        neg_margin: float = 1.0,
        *,
        nu: float = 0.0,
        active_only: bool = True,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(pos_margin, neg_margin, active_only=active_only, **parts)
        self.nu = nu

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name: the penalty on the means, and those of regularizers."""
        means = Terms(self.nu * _mean_penalty(batch.rows), None, "already_reduced")
        return {**super().penalties(batch, embeddings), "means": means}

    def distances(self, batch: EmbeddingBatch) -> Tensor:
        """Return all SNR distances [b, m] of a batch."""
        return snr_distances(batch)

    def pair_distances(self, batch: EmbeddingBatch, i: Tensor, j: Tensor) -> Tensor:
        """Return the SNR distances [t] of index pairs."""
        return snr_pair_distances(batch, i, j)


def snr_distances(batch: EmbeddingBatch) -> Tensor:
    """Return Var(e_i - o_j) / Var(e_i), [b, m], of rows and what they are compared with; 0 for a row without variance.

    By one product of centred rows c: d_ij = 1 + (|c_j|^2 - 2 c_i.c_j) / |c_i|^2.
    """
    centred = others = _centred(batch.rows)
    power = other_power = centred.square().sum(1)
    if not batch.compares_itself:
        others = _centred(batch.others)
        other_power = others.square().sum(1)
    inverse = _inverse(power)[:, None]
    return torch.addmm(other_power, centred, others.T, alpha=-2) * inverse + (inverse > 0)


def snr_pair_distances(batch: EmbeddingBatch, i: Tensor, j: Tensor) -> Tensor:
    """Return Var(e_i - o_j) / Var(e_i), [t], for index pairs, int64 [t]; 0 for a row i without variance."""
    centred = _centred(batch.rows)
    others = centred if batch.compares_itself else _centred(batch.others)
    noise = (centred.index_select(0, i) - others.index_select(0, j)).square().sum(1)
    return noise * _inverse(centred.square().sum(1)).index_select(0, i)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(1, keepdim=True)


def _mean_penalty(embeddings: Tensor) -> Tensor:
    """Return mean_i |sum_k e_ik|, a scalar that keeps means over dimensions at zero: the distance ignores them."""
    return embeddings.sum(1).abs().mean()


def _inverse(power: Tensor) -> Tensor:
    """Return 1 / power; 0 for a row of power 0."""
    tiny = torch.finfo(power.dtype).eps
    return (power > tiny) / power.clamp(min=tiny)
