"""ProxyNCA (Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies).

    L = -mean log(exp(-s |phi - p_y|^2) / sum_z exp(-s |phi - p_z|^2))

phi is a unit embedding, y its class, p_z the unit proxy of class z, and s the scale; the paper sums
over z != y.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import unit_vectors
from training.losses.proxies import ClassVectorLoss, class_vectors, shift_target_logits, target_cosines
from training.pml import ClassParts
from zoo.errors import RecipeError


class ProxyNCALoss(ClassVectorLoss):
    """Neighbourhood component analysis with one learnt proxy per class.

    Args:
        num_classes: Number of training classes, at least 2.
        embedding_size: Dimension of the embeddings.
        softmax_scale: s; 9 in Roth et al. 2020, Revisiting, appendix A, whose proxies learn at 5e-4.
        positive_in_denominator: Let the sum include z = y, as in pytorch-metric-learning and thus in Musgrave et al.
            2020, Reality Check. The paper does not.
        start: Distribution of the first proxies, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.

    Raises:
        RecipeError: If there are fewer than two classes.
    """

    main_constant = "softmax_scale"
    own_distance = "LpDistance(power=2)"
    weighs_anchors = True
    fills_rows = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        softmax_scale: float = 1.0,
        positive_in_denominator: bool = True,
        start: str = "normal",
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, **parts)
        if num_classes < 2:
            raise RecipeError(
                f"the loss 'proxynca' compares classes: it needs at least 2, not {num_classes}.", code="too-few-classes"
            )
        self.softmax_scale, self.positive_in_denominator, self.start = softmax_scale, positive_in_denominator, start
        self.proxies = self.vectors(class_vectors(num_classes, embedding_size, start=start))

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, None]:
        """Return the terms [b], all of which count."""
        labels, logits = batch.labels, self.logits(batch.rows)
        if self.positive_in_denominator:
            return cross_entropy(logits, labels, reduction="none"), None
        targets = 2 * self.softmax_scale * target_cosines(batch.rows, unit_vectors(self.proxies, batch.rows), labels)
        return shift_target_logits(logits, labels, -torch.inf).logsumexp(1) - targets, None

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows."""
        # -s |phi - p|^2 = 2 s phi.p - 2 s for unit vectors; the constant cancels.
        return 2 * self.softmax_scale * rows @ unit_vectors(self.proxies, rows).T
