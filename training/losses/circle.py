"""Circle loss (Sun et al. 2020, Circle Loss: A Unified Perspective of Pair Similarity Optimization).

L = mean_a log(1 + sum_n exp(gamma w_n (s_an - m)) sum_p exp(-gamma w_p (s_ap - 1 + m)))
w_n = [s_an + m]+,  w_p = [1 + m - s_ap]+, both without gradient
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import relu, softplus

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import ElementLoss
from training.pml import Parts


class CircleLoss(ElementLoss):
    """Circle loss over pairs; anchors without a positive or without a negative are left out.

    Args:
        m: 0.4 is the paper's value for fine-grained retrieval.
        gamma: Scale; 80 is the paper's value for fine-grained retrieval.
        parts: See `MetricLoss`.
    """

    main_constant = "gamma"
    own_distance = "CosineSimilarity(power=1)"
    tuples = Pairs
    compares_references = True

    def __init__(self, m: float = 0.4, gamma: float = 80.0, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.m, self.gamma = m, gamma

    def elements(self, batch: EmbeddingBatch, tuples: Pairs | None) -> tuple[Tensor, Tensor]:
        """Return the terms [b] and which of them count, over the pairs, or over all of the batch."""
        positive, negative = batch.masks(tuples)
        cosines = batch.cosines()
        detached = cosines.detach()
        pull = -self.gamma * relu(1 + self.m - detached) * (cosines - 1 + self.m)
        push = self.gamma * relu(detached + self.m) * (cosines - self.m)
        terms = softplus(functional.masked_logsumexp(pull, positive) + functional.masked_logsumexp(push, negative))
        return terms, positive.any(1) & negative.any(1)
