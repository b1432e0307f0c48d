"""Multi-similarity mining (Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting, section 4.1).

keep n if s_an > min_p s_ap - epsilon,  keep p if s_ap < max_n s_an + epsilon
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Pairs, check_batch, negative_mask, positive_mask


class MultiSimilarityMiner:
    """Pairs that are hard by `epsilon`.

    Args:
        epsilon: Tolerance of the cosines; 0.1 in the paper.
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Pairs:
        """Return pairs of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        embeddings = embeddings.detach().float()
        similarities = embeddings @ embeddings.T
        positives, negatives = positive_mask(labels), negative_mask(labels)
        lowest = similarities.masked_fill(~positives, torch.inf).amin(1, keepdim=True)
        highest = similarities.masked_fill(~negatives, -torch.inf).amax(1, keepdim=True)
        # "not easy" instead of "hard" keeps pairs that are not finite, for the loss to report.
        kept_positives = positives & ~(similarities >= highest + self.epsilon)
        kept_negatives = negatives & ~(similarities <= lowest - self.epsilon)
        return Pairs(*kept_positives.nonzero(as_tuple=True), *kept_negatives.nonzero(as_tuple=True))
