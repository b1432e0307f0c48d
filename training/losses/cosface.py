"""CosFace (Wang et al. 2018, Large Margin Cosine Loss for Deep Face Recognition, section 3.1).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale (cos theta_y - margin)

theta_j is the angle between an embedding and the centre of class j; y is its own class.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, shift_target_logits


class CosFaceLoss(nn.Module):
    """Cross entropy of scaled cosines with class centres; a margin is subtracted from the own class's cosine.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        scale: Factor of the cosines; 64 in the paper.
        margin: 0.35 in the paper. Musgrave et al. 2020, Reality Check, searches scale and margin.
        start: Distribution of the first class vectors, see `class_vectors`.
    """

    def __init__(
        self, classes: int, dim: int, scale: float = 64.0, margin: float = 0.35, start: str = "uniform"
    ) -> None:
        super().__init__()
        self.scale, self.margin = scale, margin
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
        logits = self.scale * embeddings @ normalize(self.centres, dim=1).T
        return shift_target_logits(logits, labels, -self.scale * self.margin)
