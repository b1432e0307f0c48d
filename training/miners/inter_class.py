"""Inter-class triplets (Milbich, Roth et al. 2020, Sharing Matters, section 3.2).

Anchor, positive and negative are of three different classes.
"""

from __future__ import annotations

import torch

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns, fall_back, unit_distances
from training.miners.base import BaseMiner
from training.miners.distance_weighted import DistanceWeightedMiner
from training.miners.semihard import semihard_mask
from zoo.errors import RecipeError

POSITIVES, NEGATIVES = ("distance-weighted", "random", "nearest"), ("distance-weighted", "semihard", "random")


class InterClassMiner(BaseMiner):
    """One triplet of three classes per anchor, from which features that classes share are learnt.

    With one class per sample the triplets have no constraints (Sharing Matters, table 8a).

    Args:
        positive: Draw from another class: "distance-weighted" (algorithm 1), "random", or "nearest", the set-up
            "min d(a, p)" of table 8a.
        negative: Draw from the remaining classes: "distance-weighted" (algorithm 1), "semihard" or "random" (table 8b).
        cutoff: Smallest distance of distance-weighted sampling.
        nonzero_loss_cutoff: Largest distance of distance-weighted sampling.
        margin: Width of the semihard band.

    Raises:
        RecipeError: If positive or negative is unknown.
    """

    compares_references = False

    def __init__(
        self,
        positive: str = "distance-weighted",
        negative: str = "distance-weighted",
        cutoff: float = 0.5,
        nonzero_loss_cutoff: float | None = 1.4,
        margin: float = 0.2,
    ) -> None:
        super().__init__()
        for kind, value, names in (("positive", positive, POSITIVES), ("negative", negative, NEGATIVES)):
            if value not in names:
                raise RecipeError(
                    f"the miner 'inter-class' has no {kind} {value!r}; choose {' or '.join(names)}.",
                    code="unknown-name",
                )
        self.positive, self.negative, self.margin = positive, negative, margin
        self.cutoff, self.nonzero_loss_cutoff = cutoff, nonzero_loss_cutoff
        self.distance_weighted = DistanceWeightedMiner(cutoff, nonzero_loss_cutoff)

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet per anchor; none for a batch of fewer than three classes."""
        labels, other_class = batch.labels, batch.negative
        anchors = torch.arange(len(labels), device=labels.device)
        if len(labels.unique()) < 3:
            return Triplets(anchors[:0], anchors[:0], anchors[:0])
        distances = unit_distances(batch.rows)
        if self.positive == "distance-weighted":
            positives = draw_columns(self.distance_weighted.weights(batch.rows, other_class), anchors)
        elif self.positive == "nearest":
            positives = distances.masked_fill(~other_class, torch.inf).argmin(1)
        else:
            positives = draw_columns(other_class, anchors)
        remaining = other_class & (labels != labels[positives][:, None])
        if self.negative == "distance-weighted":
            weights = self.distance_weighted.weights(batch.rows, remaining)
        elif self.negative == "semihard":
            semihard = semihard_mask(distances, distances.gather(1, positives[:, None]), self.margin)
            weights = fall_back(remaining & semihard, remaining)
        else:
            weights = remaining
        return Triplets(anchors, positives, draw_columns(weights, anchors))
