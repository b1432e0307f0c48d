"""FastAP (Cakir et al. 2019, Deep Metric Learning to Rank).

    L = mean_q 1 - AP_q,  AP_q = 1 / N+ sum_l h+_l H+_l / H_l

h+ is the soft histogram of the squared distances from query q to its N+ positives, H+ its cumulative sum, and H that of
the distances to all other samples.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import pair_kinds, soft_histograms
from training.losses.base import ElementLoss
from training.pml import Parts


class FastAPLoss(ElementLoss):
    """One minus the average precision from soft histograms, averaged over the samples that have a positive.

    Args:
        num_bins: The histograms have num_bins + 1 nodes on [0, 4]; 10 in the authors' code.
        parts: See `MetricLoss`.
    """

    main_constant = "num_bins"
    own_distance = "LpDistance(power=2)"
    weighs_samples = True

    def __init__(self, num_bins: int = 10, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.num_bins = num_bins

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, Tensor]:
        """Return the terms [b] and which of them count."""
        kinds = pair_kinds(batch.labels)
        # Squared distances from 0 to 4 are cosines from 1 to -1.
        positive, negative, _ = soft_histograms(batch.cosines(), kinds, self.num_bins + 1, 1, -1).unbind(1)
        nearer = (positive + negative).cumsum(1).clamp(min=torch.finfo(positive.dtype).eps)
        positives = (kinds == 0).sum(1)
        precision = (positive * positive.cumsum(1) / nearer).sum(1) / positives.clamp(min=1)
        return 1 - precision, positives > 0
