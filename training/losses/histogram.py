"""Histogram loss (Ustinova & Lempitsky 2016, Learning Deep Embeddings with Histogram Loss, section 3).

    L = sum_r h-_r sum_{q <= r} h+_q

h+ and h- are the soft histograms of the cosines of positive and of negative pairs, each with sum 1. L estimates the
probability that a negative pair is more similar than a positive one.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import pair_kinds, soft_histograms
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

    def __init__(self, n_bins: int = 100, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.n_bins = n_bins

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar; 0 without positive or without negative pairs."""
        histograms = soft_histograms(batch.cosines(), pair_kinds(batch.labels), self.n_bins + 1, -1, 1)
        positive, negative, _ = histograms.sum(0)
        positive, negative = positive / positive.sum().clamp(min=1), negative / negative.sum().clamp(min=1)
        return (negative * positive.cumsum(0)).sum()
