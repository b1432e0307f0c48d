"""CosFace (Wang et al. 2018, Large Margin Cosine Loss for Deep Face Recognition, section 3.1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, margin_cross_entropy


class CosFace(nn.Module):
    """Cross entropy of scale * (cos(theta_y) - margin) against scale * cos(theta_j); theta: angles to class centres.

    Constants of the paper: scale 64, margin 0.35 (Musgrave et al. 2020, Reality Check, searches both).
    """

    def __init__(self, classes: int, dim: int, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__()
        self.scale, self.margin = scale, margin
        self.centres = nn.Parameter(class_vectors(classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, len(self.centres))
        logits = self.scale * embeddings @ normalize(self.centres, dim=1).T
        return margin_cross_entropy(logits, labels, -self.scale * self.margin)
