"""ArcFace (Deng et al. 2019, Additive Angular Margin Loss for Deep Face Recognition, eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, margin_cross_entropy, target_cosines


class ArcFace(nn.Module):
    """Cross entropy of scale * cos(theta_y + margin) against scale * cos(theta_j); theta: angles to class centres.

    Beyond theta_y = pi - margin, where the cosine would rise again, cos(theta_y) - margin * sin(margin) keeps falling
    (the authors' code). Constants of Roth et al. 2020, Revisiting, appendix A: scale 16, margin 0.5 rad, centres
    learnt at rate 5e-4. clamped: negative cosines count as 0, as in the code published with it. (There the margin's
    change is added to the logits of all classes alike, so that it has no effect: not copied.)
    """

    def __init__(self, classes: int, dim: int, scale: float = 16.0, margin: float = 0.5, clamped: bool = False) -> None:
        super().__init__()
        self.scale, self.margin, self.clamped = scale, margin, clamped
        self.centres = nn.Parameter(class_vectors(classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, len(self.centres))
        centres = normalize(self.centres, dim=1)
        logits, own = self.scale * embeddings @ centres.T, target_cosines(embeddings, centres, labels)
        if self.clamped:
            logits, own = logits.clamp(min=0), own.clamp(min=0)
        return margin_cross_entropy(logits, labels, self.scale * (add_angle(own, self.margin) - own))


def add_angle(cosine: Tensor, margin: float) -> Tensor:
    """cos(theta + margin) from cos(theta), going on falling beyond theta = pi - margin. Finite gradient everywhere."""
    sine = (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).eps).sqrt()
    turned = cosine * math.cos(margin) - sine * math.sin(margin)
    return torch.where(cosine >= -math.cos(margin), turned, cosine - margin * math.sin(margin))
