"""Softhard triplets, "(H)" in the published code of Roth et al. 2020, Revisiting (Roth & Brattoli 2019).

d_ap > min_n d_an,  d_an < max_p d_ap
"""

from __future__ import annotations

import torch

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns, fall_back, rows_with_all, unit_distances
from training.miners.base import BaseMiner


class SofthardMiner(BaseMiner):
    """One triplet per anchor: a positive beyond the nearest negative and a negative nearer than the farthest positive.

    Both are drawn evenly among these, or among all without such a sample.
    """

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet of each anchor that has a positive and a negative."""
        distances = unit_distances(batch.rows, batch.others)
        positives, negatives = batch.positive, batch.negative
        anchors = rows_with_all(positives, negatives)
        farthest = distances.masked_fill(~positives, -torch.inf).amax(1, keepdim=True)
        nearest = distances.masked_fill(~negatives, torch.inf).amin(1, keepdim=True)
        hard_positives = fall_back(positives & (distances > nearest), positives)
        hard_negatives = fall_back(negatives & (distances < farthest), negatives)
        return Triplets(anchors, draw_columns(hard_positives, anchors), draw_columns(hard_negatives, anchors))
