"""rho-regularisation (Roth et al. 2020, Revisiting, section 5.1).

(a, p, n) -> (a, p, p) with probability rho; in the published code (a, a, p)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from training.batch import EmbeddingBatch, read_tuples
from training.functional import Pairs, Triplets, draw_columns
from training.miners.base import BaseMiner
from training.miners.distance_weighted import DistanceWeightedMiner
from zoo.errors import RecipeError


class RhoMiner(BaseMiner):
    """Tuples of another miner whose negative is exchanged for the positive with some probability.

    Such a triplet (a, p, p) pushes samples of one class apart, against too strong a compression. In the triplet and SNR
    losses, and in the contrastive loss below its negative margin, it is a constant without gradient: there only the
    published form (a, a, p) has an effect. The margin loss pushes in both forms, but with (a, p, p) it also pulls.

    Pairs have no positive for their negative. There the negative of a pair is exchanged for another sample of the
    anchor's class.

    Args:
        probability: Rho, from 0 to 1.
        miner: Wrapped miner; the default is distance-weighted.
        published: Build (a, a, p), as the published code does, which also leaves the pull out; of pairs, drop each
            positive pair with the same probability.

    Raises:
        RecipeError: If the probability is outside 0 to 1.
    """

    compares_references = False

    def __init__(
        self,
        probability: float,
        miner: Callable[..., Any] | None = None,
        published: bool = False,
    ) -> None:
        if not 0 <= probability <= 1:
            raise RecipeError(f"the probability of rho is {probability}; it must be from 0 to 1.", code="invalid-value")
        super().__init__()
        self.probability, self.miner, self.published = probability, miner or DistanceWeightedMiner(), published

    def mine(self, batch: EmbeddingBatch) -> Triplets | Pairs:
        """Return tuples of the kind that the wrapped miner returns."""
        if isinstance(self.miner, BaseMiner):
            tuples = self.miner.mine(batch)
        else:
            tuples = read_tuples(self.miner(batch.rows, batch.labels))
        return self._exchange_pairs(tuples, batch) if isinstance(tuples, Pairs) else self._exchange_triplets(tuples)

    def _exchange_triplets(self, triplets: Triplets) -> Triplets:
        anchors, positives, negatives = triplets
        exchanged = self._choose(anchors)
        new_positives = torch.where(exchanged, anchors, positives) if self.published else positives
        return Triplets(anchors, new_positives, torch.where(exchanged, positives, negatives))

    def _exchange_pairs(self, pairs: Pairs, batch: EmbeddingBatch) -> Pairs:
        same = batch.positive
        exchanged = self._choose(pairs.anchors_n) & same.any(1)[pairs.anchors_n]
        negatives = pairs.negatives.clone()
        negatives[exchanged] = draw_columns(same, pairs.anchors_n[exchanged])
        anchors, positives = pairs.anchors_p, pairs.positives
        if self.published:
            unchanged = ~self._choose(anchors)
            anchors, positives = anchors[unchanged], positives[unchanged]
        return Pairs(anchors, positives, pairs.anchors_n, negatives)

    def _choose(self, tuples: Tensor) -> Tensor:
        return torch.rand(tuples.shape, device=tuples.device) < self.probability
