"""Histogram loss (Ustinova & Lempitsky 2016, Learning Deep Embeddings with Histogram Loss, section 3).

    L = sum_r h-_r sum_{q <= r} h+_q

h+ and h- are the soft histograms of the cosines of positive and of negative pairs, each with sum 1. L estimates the
probability that a negative pair is more similar than a positive one.
"""

from __future__ import annotations

from torch import Tensor, nn

from training.functional import check_batch, pair_kinds, soft_histograms


class HistogramLoss(nn.Module):
    """Overlap of the soft histograms of positive and negative similarities.

    Args:
        classes: Number of training classes; not used.
        nodes: Nodes of the histograms on [-1, 1]; Roth et al. 2020, Revisiting, appendix A, has 65, on SOP 11.
            Libraries that count bins call 65 nodes 64 bins.
    """

    def __init__(self, classes: int, nodes: int = 65) -> None:
        super().__init__()
        self.nodes = nodes

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        The loss is 0 without positive or without negative pairs.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        histograms = soft_histograms(embeddings @ embeddings.T, pair_kinds(labels), self.nodes, -1, 1)
        positive, negative, _ = histograms.sum(0)
        positive, negative = positive / positive.sum().clamp(min=1), negative / negative.sum().clamp(min=1)
        return (negative * positive.cumsum(0)).sum()
