"""Multi-similarity loss (Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting).

L = mean_a 1/alpha log(1 + sum_p exp(-alpha (s_ap - base))) + 1/beta log(1 + sum_n exp(beta (s_an - base)))
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import MetricLoss


class MultiSimilarityLoss(MetricLoss):
    """Multi-similarity loss over mined pairs or all pairs; the paper mines pairs with `MultiSimilarityMiner`.

    Args:
        alpha: Scale of the positive pairs.
        beta: Scale of the negative pairs; 50 in the paper, 40 in Roth et al. 2020, Revisiting, appendix A.
        base: Lambda, the similarity from which pairs count.
        kept_only: Average over the anchors that keep a positive and a negative pair, as in the code published with
            Revisiting, instead of over all samples.
    """

    tuples = Pairs
    compares_references = True

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, *, kept_only: bool = False) -> None:
        super().__init__()
        self.alpha, self.beta, self.base, self.kept_only = alpha, beta, base, kept_only

    def compute(self, batch: EmbeddingBatch, tuples: Pairs | None) -> Tensor:
        """Return the loss, a scalar, over the pairs, or over all of the batch."""
        positive, negative = batch.masks(tuples)
        cosines = batch.cosines()
        pulled = functional.masked_logsumexp(-self.alpha * cosines, positive) + self.alpha * self.base
        pushed = functional.masked_logsumexp(self.beta * cosines, negative) - self.beta * self.base
        terms = softplus(pulled) / self.alpha + softplus(pushed) / self.beta
        return functional.masked_mean(terms, positive.any(1) & negative.any(1)) if self.kept_only else terms.mean()
