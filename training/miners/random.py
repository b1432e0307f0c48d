"""Random triplets, the baseline "(R)" of Roth et al. 2020, Revisiting, table 2."""

from __future__ import annotations

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns, rows_with_all
from training.miners.base import BaseMiner


class RandomMiner(BaseMiner):
    """One triplet per anchor: any positive, any negative."""

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet of each anchor that has a positive and a negative; the rows do not matter."""
        anchors = rows_with_all(batch.positive, batch.negative)
        return Triplets(anchors, draw_columns(batch.positive, anchors), draw_columns(batch.negative, anchors))
