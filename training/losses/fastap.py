"""FastAP (Cakir et al. 2019, Deep Metric Learning to Rank).

    L = mean_q 1 - AP_q,  AP_q = 1 / N+ sum_l h+_l H+_l / H_l

h+ is the soft histogram of the squared distances from query q to its N+ positives, H+ its cumulative sum, and H that of
the distances to all other samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import functional
from training.functional import check_batch, pair_kinds, soft_histograms


class FastAPLoss(nn.Module):
    """One minus the average precision from soft histograms, averaged over the samples that have a positive.

    Args:
        classes: Number of training classes; not used.
        bins: The histograms have bins + 1 nodes on [0, 4]; 10 in the authors' code.
    """

    def __init__(self, classes: int, bins: int = 10) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        kinds = pair_kinds(labels)
        # Squared distances from 0 to 4 are cosines from 1 to -1.
        positive, negative, _ = soft_histograms(embeddings @ embeddings.T, kinds, self.bins + 1, 1, -1).unbind(1)
        nearer = (positive + negative).cumsum(1).clamp(min=torch.finfo(positive.dtype).eps)
        positives = (kinds == 0).sum(1)
        precision = (positive * positive.cumsum(1) / nearer).sum(1) / positives.clamp(min=1)
        return functional.masked_mean(1 - precision, positives > 0)
