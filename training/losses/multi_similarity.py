"""Multi-similarity loss (Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting).

L = mean_a 1/alpha log(1 + sum_p exp(-alpha (s_ap - base))) + 1/beta log(1 + sum_n exp(beta (s_an - base)))
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import softplus

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import ElementLoss
from training.pml import Parts


class MultiSimilarityLoss(ElementLoss):
    """Multi-similarity loss over mined pairs or all pairs; the paper mines pairs with `MultiSimilarityMiner`.

    Args:
        alpha: Scale of the positive pairs.
        beta: Scale of the negative pairs; 50 in the paper, 40 in Roth et al. 2020, Revisiting, appendix A.
        base: Lambda, the similarity from which pairs count.
        kept_only: Average over the anchors that keep a positive and a negative pair, as in the code published with
            Revisiting, instead of over all samples.
        parts: See `MetricLoss`.
    """

    main_constant = "beta"
    takes_distance = True
    tuples = Pairs
    compares_references = True

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        *,
        kept_only: bool = False,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.alpha, self.beta, self.base, self.kept_only = alpha, beta, base, kept_only

    def elements(self, batch: EmbeddingBatch, tuples: Pairs | None) -> tuple[Tensor, Tensor | None]:
        """Return the terms [b] and which of them count, over the pairs, or over all of the batch."""
        positive, negative = batch.masks(tuples)
        cosines = batch.cosines()
        base = self.base if batch.distance is None else -batch.threshold(self.base)
        pulled = functional.masked_logsumexp(-self.alpha * cosines, positive) + self.alpha * base
        pushed = functional.masked_logsumexp(self.beta * cosines, negative) - self.beta * base
        terms = softplus(pulled) / self.alpha + softplus(pushed) / self.beta
        return terms, positive.any(1) & negative.any(1) if self.kept_only else None
