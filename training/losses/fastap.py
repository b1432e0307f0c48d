"""FastAP (Cakir et al. 2019, Deep Metric Learning to Rank)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import functional
from training.functional import check_batch, pair_kinds, products, soft_histograms


class FastAP(nn.Module):
    """1 - average precision from soft histograms of squared distances, mean over samples that have a positive.

    The average precision of a query is sum_l h+_l H+_l / (H_l N+), with h+ the histogram of its N+ positives on
    bins + 1 nodes of [0, 4], H+ its cumulative sum and H that of all other samples. 10 bins: the authors' code.
    """

    def __init__(self, classes: int, bins: int = 10) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels)
        kinds = pair_kinds(labels)
        # Squared distances from 0 to 4 are cosines from 1 to -1.
        positive, negative, _ = soft_histograms(products(embeddings), kinds, self.bins + 1, 1, -1).unbind(1)
        nearer = (positive + negative).cumsum(1).clamp(min=torch.finfo(positive.dtype).eps)
        relatives = (kinds == 0).sum(1)
        precision = (positive * positive.cumsum(1) / nearer).sum(1) / relatives.clamp(min=1)
        return functional.masked_mean(1 - precision, relatives > 0)
