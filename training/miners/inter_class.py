"""Inter-class triplets (Milbich, Roth et al. 2020, Sharing Matters, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, fall_back, negative_mask, unit_distances
from training.miners.distance_weighted import DistanceWeighted
from training.miners.semihard import semihard_mask
from zoo.errors import RecipeError

POSITIVES, NEGATIVES = ("random", "nearest"), ("distance-weighted", "semihard", "random")


class InterClass:
    """One triplet an anchor, of three different classes, from which features that classes share are learnt.

    positive: any sample of another class, or the nearest one (the set-up "min d(a, p)" of table 7).
    negative: drawn from the remaining classes by distance (Sharing), semihard within `margin`, or evenly (table 8).
    With a class of its own for each sample the triplets are free of constraints (table 7 too).
    """

    def __init__(
        self,
        positive: str = "random",
        negative: str = "distance-weighted",
        nearest: float = 0.5,
        farthest: float | None = 1.4,
        margin: float = 0.2,
    ) -> None:
        if positive not in POSITIVES or negative not in NEGATIVES:
            raise RecipeError(
                f"inter-class takes positive {' or '.join(POSITIVES)} and negative {' or '.join(NEGATIVES)}, "
                f"not {positive!r} and {negative!r}."
            )
        self.positive, self.negative, self.margin = positive, negative, margin
        self.distance_weighted = DistanceWeighted(nearest, farthest)

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b]; none where the batch has fewer than three classes."""
        check_batch(embeddings, labels)
        anchors = torch.arange(len(labels), device=labels.device)
        if len(labels.unique()) < 3:
            return Triplets(anchors[:0], anchors[:0], anchors[:0])
        others = negative_mask(labels)
        distances = unit_distances(embeddings.detach().float())
        if self.positive == "nearest":
            positives = distances.masked_fill(~others, torch.inf).argmin(1)
        else:
            positives = draw_columns(others, anchors)
        remaining = others & (labels != labels[positives][:, None])
        if self.negative == "distance-weighted":
            weights = self.distance_weighted.weights(embeddings, remaining)
        elif self.negative == "semihard":
            semihard = semihard_mask(distances, distances.gather(1, positives[:, None]), self.margin)
            weights = fall_back(remaining & semihard, remaining)
        else:
            weights = remaining
        return Triplets(anchors, positives, draw_columns(weights, anchors))
