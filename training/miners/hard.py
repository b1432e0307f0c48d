"""Batch-hard triplets (Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification, eq. 5).

p = argmax_p d_ap,  n = argmin_n d_an
"""

from __future__ import annotations

import torch

from training.batch import EmbeddingBatch
from training.functional import Triplets, rows_with_all
from training.miners.base import BaseMiner, mined_distances


class BatchHardMiner(BaseMiner):
    """One triplet per anchor: its farthest positive and its nearest negative."""

    takes_distance = True

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet of each anchor that has a positive and a negative."""
        anchors = rows_with_all(batch.positive, batch.negative)
        if not len(anchors):
            return Triplets(anchors, anchors, anchors)
        distances = mined_distances(batch)
        farthest = distances.masked_fill(~batch.positive, -torch.inf).argmax(1)
        nearest = distances.masked_fill(~batch.negative, torch.inf).argmin(1)
        return Triplets(anchors, farthest[anchors], nearest[anchors])
