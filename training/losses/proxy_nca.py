"""ProxyNCA (Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies).

    L = -mean log(exp(-s |phi - p_y|^2) / sum_z exp(-s |phi - p_z|^2))

phi is a unit embedding, y its class, p_z the unit proxy of class z, and s the scale; the paper sums
over z != y.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import MetricLoss, unit_vectors
from training.losses.proxies import class_vectors, shift_target_logits, target_cosines
from zoo.errors import RecipeError


class ProxyNCALoss(MetricLoss):
    """Neighbourhood component analysis with one learnt proxy per class.

    Args:
        num_classes: Number of training classes, at least 2.
        embedding_size: Dimension of the embeddings.
        softmax_scale: s; 9 in Roth et al. 2020, Revisiting, appendix A, whose proxies learn at 5e-4.
        positive_in_denominator: Let the sum include z = y, as in pytorch-metric-learning and thus in Musgrave et al.
            2020, Reality Check. The paper does not.
        start: Distribution of the first proxies, see `class_vectors`.

    Raises:
        RecipeError: If there are fewer than two classes.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        softmax_scale: float = 1.0,
        positive_in_denominator: bool = True,
        start: str = "normal",
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise RecipeError(
                f"the loss 'proxynca' compares classes: it needs at least 2, not {num_classes}.", code="too-few-classes"
            )
        self.num_classes, self.embedding_size, self.start = num_classes, embedding_size, start
        self.softmax_scale, self.positive_in_denominator = softmax_scale, positive_in_denominator
        self.proxies = nn.Parameter(class_vectors(num_classes, embedding_size, start=start))

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar."""
        # -s |phi - p|^2 = 2 s phi.p - 2 s for unit vectors; the constant cancels.
        labels, proxies = batch.labels, unit_vectors(self.proxies, batch.rows)
        scaled = 2 * self.softmax_scale * batch.rows
        logits = scaled @ proxies.T
        if self.positive_in_denominator:
            return cross_entropy(logits, labels)
        non_targets = shift_target_logits(logits, labels, -torch.inf).logsumexp(1)
        return (non_targets - target_cosines(scaled, proxies, labels)).mean()
