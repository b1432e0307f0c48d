"""ArcFace (Deng et al. 2019, Additive Angular Margin Loss for Deep Face Recognition, eq. 3).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale cos(theta_y + margin)

theta_j is the angle between an embedding and the centre of class j; y is its own class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, shift_target_logits, target_cosines


class ArcFaceLoss(nn.Module):
    """Cross entropy of scaled cosines with class centres; the angle to the own class is enlarged by a margin.

    Beyond theta_y = pi - margin the cosine would rise again. There cos(theta_y) - margin * sin(margin) keeps falling,
    as in the authors' code. The defaults are those of Roth et al. 2020, Revisiting, appendix A; its centres learn at
    5e-4.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        scale: Factor of the cosines.
        margin: Angle in radians.
        clamped: Set negative cosines to 0, as in the code published with Revisiting.
        start: Distribution of the first class vectors, see `class_vectors`.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        scale: float = 16.0,
        margin: float = 0.5,
        clamped: bool = False,
        start: str = "uniform",
    ) -> None:
        super().__init__()
        self.scale, self.margin, self.clamped = scale, margin, clamped
        self.centres = nn.Parameter(class_vectors(classes, dim, start=start))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, len(self.centres))
        return cross_entropy(self.shifted_logits(embeddings, labels), labels)

    def shifted_logits(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] with the margin, whose cross entropy is the loss."""
        centres = normalize(self.centres, dim=1)
        logits, targets = self.scale * embeddings @ centres.T, target_cosines(embeddings, centres, labels)
        if self.clamped:
            logits, targets = logits.clamp(min=0), targets.clamp(min=0)
        return shift_target_logits(logits, labels, self.scale * (add_angle(targets, self.margin) - targets))


def add_angle(cosine: Tensor, margin: Tensor | float) -> Tensor:
    """Return cos(theta + margin) from cos(theta), with a finite gradient; it still falls beyond theta = pi - margin.

    Args:
        cosine: [b].
        margin: Angle in radians: one number, or [b].
    """
    cos, sin = (margin.cos(), margin.sin()) if isinstance(margin, Tensor) else (math.cos(margin), math.sin(margin))
    sine = (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).eps).sqrt()
    return torch.where(cosine >= -cos, cosine * cos - sine * sin, cosine - margin * sin)
