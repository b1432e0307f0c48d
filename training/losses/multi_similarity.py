"""Multi-similarity loss (Wang et al. 2019, Multi-Similarity Loss with General Pair Weighting).

L = mean_a 1/alpha log(1 + sum_p exp(-alpha (s_ap - base))) + 1/beta log(1 + sum_n exp(beta (s_an - base)))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from training import functional
from training.functional import Pairs, Triplets, check_batch, negative_mask, positive_mask, to_pairs


class MultiSimilarityLoss(nn.Module):
    """Multi-similarity loss over mined pairs or all pairs; the paper mines pairs with `MultiSimilarityMiner`.

    The defaults are those of Roth et al. 2020, Revisiting, appendix A.

    Args:
        classes: Number of training classes; not used.
        alpha: Scale of the positive pairs.
        beta: Scale of the negative pairs.
        base: Lambda, the similarity from which pairs count.
        kept_only: Average over the anchors that keep a positive and a negative pair, as in the code published with
            Revisiting, instead of over all samples.
    """

    def __init__(
        self, classes: int, alpha: float = 2.0, beta: float = 40.0, base: float = 0.5, kept_only: bool = False
    ) -> None:
        super().__init__()
        self.alpha, self.beta, self.base, self.kept_only = alpha, beta, base, kept_only

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Pairs | Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Without tuples every pair of the batch counts.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positive, negative = _masks(labels, tuples)
        cosines = embeddings @ embeddings.T
        pulled = functional.masked_logsumexp(-self.alpha * cosines, positive) + self.alpha * self.base
        pushed = functional.masked_logsumexp(self.beta * cosines, negative) - self.beta * self.base
        terms = softplus(pulled) / self.alpha + softplus(pushed) / self.beta
        return functional.masked_mean(terms, positive.any(1) & negative.any(1)) if self.kept_only else terms.mean()


def _masks(labels: Tensor, tuples: Pairs | Triplets | None) -> tuple[Tensor, Tensor]:
    """Return two masks, bool [b, b]: the pairs that count as positive and those that count as negative."""
    if tuples is None:
        return positive_mask(labels), negative_mask(labels)
    pairs = to_pairs(tuples)
    positive = torch.zeros(len(labels), len(labels), dtype=torch.bool, device=labels.device)
    negative = torch.zeros_like(positive)
    positive[pairs.anchors_p, pairs.positives] = True
    negative[pairs.anchors_n, pairs.negatives] = True
    return positive, negative
