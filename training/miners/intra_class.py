"""Intra-class triplets (Milbich, Roth et al. 2020, DiVA, section 3.1).

Anchor, positive and negative are three different samples of one class.
"""

from __future__ import annotations

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns
from training.miners.base import BaseMiner
from training.miners.distance_weighted import DistanceWeightedMiner
from zoo.errors import RecipeError


class IntraClassMiner(BaseMiner):
    """One triplet within its class per anchor, from which differences within classes are learnt.

    The positive is random. The paper demands draws by distance of the shared triplets, and follows "a similar
    intuition" in intra-class ones; its published code draws all three samples evenly.

    Args:
        by_distance: Draw the negative by distance; False: evenly.
        cutoff: Smallest distance of distance-weighted sampling.
        nonzero_loss_cutoff: Largest distance of distance-weighted sampling.
    """

    compares_references = False

    def __init__(self, by_distance: bool = True, cutoff: float = 0.5, nonzero_loss_cutoff: float | None = 1.4) -> None:
        super().__init__()
        self.by_distance, self.cutoff, self.nonzero_loss_cutoff = by_distance, cutoff, nonzero_loss_cutoff
        self.distance_weighted = DistanceWeightedMiner(cutoff, nonzero_loss_cutoff)

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet per anchor; none for anchors of a class with fewer than three samples.

        Raises:
            RecipeError: If no class of the batch has three samples.
        """
        same = batch.positive.clone()
        anchors = (same.sum(1) >= 2).nonzero()[:, 0]
        if len(anchors) == 0:
            raise RecipeError(
                f"no class has more than {1 + int(same.any())} samples in this batch; intra-class triplets need three. "
                "Set batch.per_class to 3 or more, with classes of at least that many images.",
                code="too-few-samples",
            )
        positives = draw_columns(same, anchors)
        same[anchors, positives] = False
        weights = self.distance_weighted.weights(batch.rows, same) if self.by_distance else same
        return Triplets(anchors, positives, draw_columns(weights, anchors))
