"""Circle loss (Sun et al. 2020, Circle Loss: A Unified Perspective of Pair Similarity Optimization).

L = mean_a log(1 + sum_n exp(gamma w_n (s_an - m)) sum_p exp(-gamma w_p (s_ap - 1 + m)))
w_n = [s_an + m]+,  w_p = [1 + m - s_ap]+, both without gradient
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from training import functional
from training.functional import check_batch, negative_mask, positive_mask


class CircleLoss(nn.Module):
    """Circle loss over all pairs of a batch; anchors without a positive or without a negative are left out.

    Args:
        classes: Number of training classes; not used.
        margin: m; 0.4 is the paper's value for fine-grained retrieval.
        gamma: Scale; 80 is the paper's value for fine-grained retrieval.
    """

    def __init__(self, classes: int, margin: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        self.margin, self.gamma = margin, gamma

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positive, negative = positive_mask(labels), negative_mask(labels)
        cosines = embeddings @ embeddings.T
        detached = cosines.detach()
        pull = -self.gamma * relu(1 + self.margin - detached) * (cosines - 1 + self.margin)
        push = self.gamma * relu(detached + self.margin) * (cosines - self.margin)
        terms = softplus(functional.masked_logsumexp(pull, positive) + functional.masked_logsumexp(push, negative))
        return functional.masked_mean(terms, positive.any(1) & negative.any(1))
