"""CosFace (Wang et al. 2018, Large Margin Cosine Loss for Deep Face Recognition, section 3.1).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale (cos theta_y - margin)

theta_j is the angle between an embedding and the centre of class j; y is its own class.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from training.losses.base import unit_vectors
from training.losses.proxies import ClassificationLoss, shift_target_logits
from training.pml import ClassParts


class CosFaceLoss(ClassificationLoss):
    """Cross entropy of scaled cosines with class centres; a margin is subtracted from the own class's cosine.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        margin: 0.35 in the paper. Musgrave et al. 2020, Reality Check, searches scale and margin.
        scale: Factor of the cosines; 64 in the paper.
        start: Distribution of the first class vectors, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    main_constant = "scale"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.35,
        scale: float = 64.0,
        *,
        start: str = "normal",
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, start, **parts)
        self.margin, self.scale = margin, scale

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows, without the margin."""
        return self.scale * rows @ unit_vectors(self.centres, rows).T

    def shifted_logits(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows with the margin, whose cross entropy is the loss."""
        return shift_target_logits(self.logits(rows), labels, -self.scale * self.margin)
