"""Semihard negatives (Schroff et al. 2015, FaceNet, section 3.2), as in Roth et al. 2020, Revisiting, appendix A.2.

d_ap < d_an < d_ap + margin
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns, fall_back, rows_with_all, unit_distances
from training.miners.base import BaseMiner


class SemihardMiner(BaseMiner):
    """One triplet per anchor: any positive and a semihard negative, or any negative if there is no semihard one.

    Args:
        margin: Width of the band of distances; 0.2 as in the triplet loss.
    """

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet of each anchor that has a positive and a negative."""
        anchors = rows_with_all(batch.positive, batch.negative)
        partners = draw_columns(batch.positive, anchors)
        distances, negatives = unit_distances(batch.rows, batch.others)[anchors], batch.negative[anchors]
        semihard = negatives & semihard_mask(distances, distances.gather(1, partners[:, None]), self.margin)
        rows = torch.arange(len(anchors), device=anchors.device)
        return Triplets(anchors, partners, draw_columns(fall_back(semihard, negatives), rows))


def semihard_mask(distances: Tensor, positive: Tensor, margin: float) -> Tensor:
    """Return bool [t, b]: where distances [t, b] exceed that of the row's positive, [t, 1], by less than the margin."""
    return (distances > positive) & (distances < positive + margin)
