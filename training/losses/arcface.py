"""ArcFace (Deng et al. 2019, Additive Angular Margin Loss for Deep Face Recognition, eq. 3).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale cos(theta_y + margin)

theta_j is the angle between an embedding and the centre of class j; y is its own class.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from training.losses.base import unit_vectors
from training.losses.proxies import ClassificationLoss, shift_target_logits, target_cosines
from training.pml import ClassParts


class ArcFaceLoss(ClassificationLoss):
    """Cross entropy of scaled cosines with class centres; the angle to the own class is enlarged by a margin.

    Beyond theta_y = pi - margin the cosine would rise again. There cos(theta_y) - margin * sin(margin) keeps falling,
    as in the authors' code.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        margin: Angle in degrees; 28.6, half a radian, also in Roth et al. 2020, Revisiting, appendix A.
        scale: Factor of the cosines; 64 in the paper, 16 in Revisiting, whose centres learn at 5e-4.
        clamped: Set negative cosines to 0, as in the code published with Revisiting.
        start: Distribution of the first class vectors, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    main_constant = "scale"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64.0,
        *,
        clamped: bool = False,
        start: str = "normal",
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, start, **parts)
        self.margin, self.scale, self.clamped = margin, scale, clamped

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows, without the margin."""
        return self.scale * rows @ unit_vectors(self.centres, rows).T

    def shifted_logits(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows with the margin, whose cross entropy is the loss."""
        logits, targets = self.logits(rows), target_cosines(rows, unit_vectors(self.centres, rows), labels)
        if self.clamped:
            logits, targets = logits.clamp(min=0), targets.clamp(min=0)
        return shift_target_logits(
            logits, labels, self.scale * (add_angle(targets, math.radians(self.margin)) - targets)
        )


def add_angle(cosine: Tensor, margin: Tensor | float) -> Tensor:
    """Return cos(theta + margin) from cos(theta), with a finite gradient; it still falls beyond theta = pi - margin.

    Args:
        cosine: [b].
        margin: Angle in radians: one number, or [b].
    """
    cos, sin = (margin.cos(), margin.sin()) if isinstance(margin, Tensor) else (math.cos(margin), math.sin(margin))
    sine = (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).eps).sqrt()
    return torch.where(cosine >= -cos, cosine * cos - sine * sin, cosine - margin * sin)
