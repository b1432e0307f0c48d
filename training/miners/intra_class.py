"""Intra-class triplets (Milbich, Roth et al. 2020, DiVA, section 3.1).

Anchor, positive and negative are three different samples of one class.
"""

from __future__ import annotations

from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, positive_mask
from training.miners.distance_weighted import DistanceWeightedMiner
from zoo.errors import RecipeError


class IntraClassMiner:
    """One triplet within its class per anchor, from which differences within classes are learnt.

    The positive is random. The paper demands draws by distance of the shared triplets, and follows "a similar
    intuition" in intra-class ones; its published code draws all three samples evenly.

    Args:
        by_distance: Draw the negative by distance; False: evenly.
        nearest: Smallest distance of distance-weighted sampling.
        farthest: Largest distance of distance-weighted sampling.
    """

    def __init__(self, by_distance: bool = True, nearest: float = 0.5, farthest: float | None = 1.4) -> None:
        self.by_distance, self.distance_weighted = by_distance, DistanceWeightedMiner(nearest, farthest)

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets of unit embeddings [b, d] with labels int64 [b]; none for anchors of a class with fewer than
        three.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If no class of the batch has three samples.
        """
        check_batch(embeddings, labels)
        same = positive_mask(labels)
        anchors = (same.sum(1) >= 2).nonzero()[:, 0]
        if len(anchors) == 0:
            raise RecipeError(
                f"no class has more than {1 + int(same.any())} samples in this batch; intra-class triplets need three. "
                "Set batch.per_class to 3 or more, with classes of at least that many images.",
                code="too-few-samples",
            )
        positives = draw_columns(same, anchors)
        same[anchors, positives] = False
        weights = self.distance_weighted.weights(embeddings, same) if self.by_distance else same
        return Triplets(anchors, positives, draw_columns(weights, anchors))
