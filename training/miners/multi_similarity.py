"""Multi-similarity mining (Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting, section 4.1).

keep n if s_an > min_p s_ap - epsilon,  keep p if s_ap < max_n s_an + epsilon
"""

from __future__ import annotations

from typing import Unpack

import torch

from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.miners.base import BaseMiner
from training.pml import MinerParts


class MultiSimilarityMiner(BaseMiner):
    """Pairs that are hard by `epsilon`.

    Args:
        epsilon: Tolerance of the cosines; 0.1 in the paper.
        parts: See `BaseMiner`.
    """

    takes_distance = True

    def __init__(self, epsilon: float = 0.1, **parts: Unpack[MinerParts]) -> None:
        super().__init__(**parts)
        self.epsilon = epsilon

    def mine(self, batch: EmbeddingBatch) -> Pairs:
        """Return the pairs that are hard by epsilon."""
        similarities, positives, negatives = batch.cosines(), batch.positive, batch.negative
        lowest = similarities.masked_fill(~positives, torch.inf).amin(1, keepdim=True)
        highest = similarities.masked_fill(~negatives, -torch.inf).amax(1, keepdim=True)
        # "not easy" instead of "hard" keeps pairs that are not finite, for the loss to report.
        kept_positives = positives & ~(similarities >= highest + self.epsilon)
        kept_negatives = negatives & ~(similarities <= lowest - self.epsilon)
        return Pairs(*kept_positives.nonzero(as_tuple=True), *kept_negatives.nonzero(as_tuple=True))
