"""Proxy-Anchor loss (Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning).

    L = mean_{p in batch} log(1 + sum_{x of p} exp(-alpha (s_xp - delta)))
        + mean_p log(1 + sum_{x not of p} exp(alpha (s_xp + delta)))

The first mean is over the proxies p of classes in the batch, the second over all proxies. With mined tuples w_x - 1 is
added to the exponents of a sample x, where w_x is how often it was mined over the largest such count.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from training.batch import EmbeddingBatch
from training.losses.base import unit_vectors
from training.losses.proxies import ClassVectorLoss, shift_target_logits, target_cosines
from training.pml import ClassParts, Terms, sum_of_quotients


class ProxyAnchorLoss(ClassVectorLoss):
    """Proxy-Anchor loss with one learnt proxy per class.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        margin: delta; 0.1 in the paper. Proxies start normal with variance 2 / classes, as in its code.
        alpha: Scale; 32 in the paper.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    main_constant = "alpha"
    fills_rows = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, **parts)
        self.margin, self.alpha = margin, alpha
        self.proxies = self.vectors(torch.randn(num_classes, embedding_size) * (2 / num_classes) ** 0.5)

    def compute(self, batch: EmbeddingBatch, tuples: Tensor | None) -> Tensor:
        """Return the loss, a scalar; the tuples are weights of the samples."""
        return sum_of_quotients(self.terms(batch, tuples))

    def terms(self, batch: EmbeddingBatch, tuples: Tensor | None) -> dict[str, Terms]:
        """Return the terms of the proxies, [classes] each, with their own samples and with all others."""
        scaled, proxies, labels = self.alpha * batch.rows, unit_vectors(self.proxies, batch.rows), batch.labels
        targets = self.alpha * self.margin - target_cosines(scaled, proxies, labels)
        # A large negative number removes a proxy's own samples. With -inf the column of a class that has the whole
        # batch would have no gradient.
        masked = shift_target_logits(scaled @ proxies.T, labels, torch.finfo(targets.dtype).min / 2)
        non_targets = masked + self.alpha * self.margin
        if tuples is not None:
            added = tuples.to(targets.dtype) - 1
            targets, non_targets = targets + added, non_targets + added[:, None]
        present, pulled = _logsumexp_by_class(targets, labels)
        near = targets.new_zeros(self.num_classes).index_put((present,), softplus(pulled))
        classes = torch.arange(self.num_classes, device=labels.device)
        return {
            "pos_loss": Terms(near, classes, "element", len(present)),
            "neg_loss": Terms(softplus(non_targets.logsumexp(0)), classes, "element", self.num_classes),
        }

    def logits(self, rows: Tensor) -> Tensor:
        """Return the cosines [b, classes] of unit rows with the proxies."""
        return rows @ unit_vectors(self.proxies, rows).T


def _logsumexp_by_class(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes in the batch, and of each log of the sum of exp(values) over its samples, [b] in the batch."""
    present, rows = labels.unique(return_inverse=True)
    top = values.detach().new_full(present.shape, -torch.inf).scatter_reduce(0, rows, values.detach(), "amax")
    return present, top + torch.zeros_like(top).index_add(0, rows, (values - top[rows]).exp()).log()
