"""All triplets of a kind, by their margin (Musgrave et al. 2020, PyTorch Metric Learning).

margin of a triplet: d_an - d_ap
"""

from __future__ import annotations

from typing import Unpack

from training.batch import EmbeddingBatch
from training.functional import Triplets
from training.miners.base import BaseMiner, mined_distances
from training.pml import MinerParts
from zoo.errors import RecipeError, nearest

TYPES = ("all", "hard", "semihard", "easy")


class TripletMarginMiner(BaseMiner):
    """Every triplet of a batch whose negative is not farther than its positive by more than a margin.

    Args:
        margin: Bound of d_an - d_ap.
        type_of_triplets: "all" of these; "hard", whose negative is not farther than the positive; "semihard", the rest
            of these; or "easy", all other triplets of the batch.
        parts: See `BaseMiner`.

    Raises:
        RecipeError: If the type is unknown.
    """

    takes_distance = True

    def __init__(self, margin: float = 0.2, type_of_triplets: str = "all", **parts: Unpack[MinerParts]) -> None:
        super().__init__(**parts)
        if type_of_triplets not in TYPES:
            raise RecipeError(
                f"type_of_triplets is {type_of_triplets!r}; choose one of {', '.join(TYPES)}."
                f"{nearest(type_of_triplets, TYPES)}",
                code="unknown-name",
            )
        self.margin, self.type_of_triplets = margin, type_of_triplets

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return the triplets of the type; memory is O(positive pairs * m)."""
        distances = mined_distances(batch)
        anchors, positives = batch.positive_pairs()
        margins = distances[anchors] - distances[anchors, positives][:, None]
        kept = {
            "all": margins <= self.margin,
            "hard": (margins <= self.margin) & (margins <= 0),
            "semihard": (margins <= self.margin) & (margins > 0),
            "easy": margins > self.margin,
        }[self.type_of_triplets]
        rows, negatives = (kept & batch.negative[anchors]).nonzero(as_tuple=True)
        return Triplets(anchors[rows], positives[rows], negatives)
