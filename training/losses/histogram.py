"""Histogram loss (Ustinova & Lempitsky 2016, Learning Deep Embeddings with Histogram Loss, section 3).

    L = sum_r h-_r sum_{q <= r} h+_q

h+ and h- are the soft histograms of the cosines of positive and of negative pairs, each with sum 1. L estimates the
probability that a negative pair is more similar than a positive one. Mined triplets choose the pairs; each pair counts
once, even if it was mined often or in both orders.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Triplets, pair_kinds, soft_histograms
from training.losses.base import MetricLoss
from training.pml import Parts


class HistogramLoss(MetricLoss):
    """Overlap of the soft histograms of positive and negative similarities.

    Args:
        n_bins: The histograms have n_bins + 1 nodes on [-1, 1]; Roth et al. 2020, Revisiting, appendix A, has 65 nodes,
            on SOP 11.
        parts: See `MetricLoss`.
    """

    main_constant = "n_bins"
    own_distance = "CosineSimilarity(power=1)"
    tuples = Triplets
    joins_pairs = True

    def __init__(self, n_bins: int = 100, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.n_bins = n_bins

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar; 0 without positive or without negative pairs."""
        cosines = batch.cosines()
        pairs = (cosines, pair_kinds(batch.labels)) if tuples is None else _mined_values(cosines, tuples)
        histograms = soft_histograms(*pairs, self.n_bins + 1, -1, 1)
        positive, negative, _ = histograms.sum(0)
        positive, negative = (histogram / histogram.sum().clamp(min=1) for histogram in (positive, negative))
        return (negative * positive.cumsum(0)).sum()


def _mined_values(cosines: Tensor, triplets: Triplets) -> tuple[Tensor, Tensor]:
    """Return the cosines [1, t] of the different pairs in triplets, and the kind of each pair, int64 [1, t]."""
    size = len(cosines)
    pairs = [
        (torch.minimum(triplets.anchors, others) * size + torch.maximum(triplets.anchors, others)).unique()
        for others in (triplets.positives, triplets.negatives)
    ]
    kinds = torch.cat([torch.full_like(keys, kind) for kind, keys in enumerate(pairs)])
    return cosines.flatten()[torch.cat(pairs)][None], kinds[None]
