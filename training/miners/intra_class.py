"""Intra-class triplets (Milbich, Roth et al. 2020, DiVA, section 3.2)."""

from __future__ import annotations

from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, positive_mask
from training.miners.distance_weighted import DistanceWeighted
from zoo.errors import RecipeError


class IntraClass:
    """One triplet an anchor, of three different samples of its class, from which differences within it are learnt.

    The positive is any; the negative is drawn by distance, or evenly where `by_distance` is False.
    """

    def __init__(self, by_distance: bool = True, nearest: float = 0.5, farthest: float | None = 1.4) -> None:
        self.by_distance, self.distance_weighted = by_distance, DistanceWeighted(nearest, farthest)

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b]; none for anchors of classes with fewer than three.

        Raises `RecipeError` where no class of the batch has three samples.
        """
        check_batch(embeddings, labels)
        same = positive_mask(labels)
        anchors = (same.sum(1) >= 2).nonzero()[:, 0]
        if len(anchors) == 0:
            raise RecipeError(
                f"intra-class triplets need three samples of a class; no class has more than {1 + int(same.any())} in "
                "this batch. Set batch.per_class to 3 or more, for classes of as many images."
            )
        positives = draw_columns(same, anchors)
        same[anchors, positives] = False
        weights = self.distance_weighted.weights(embeddings, same) if self.by_distance else same
        return Triplets(anchors, positives, draw_columns(weights, anchors))
