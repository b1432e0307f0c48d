"""Normalised softmax (Zhai & Wu 2019, Classification is a Strong Baseline for Deep Metric Learning).

    L = -mean log(exp(cos theta_y / T) / sum_j exp(cos theta_j / T))

theta_j is the angle between an embedding and the vector of class j; y is its own class.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors


class NormalizedSoftmaxLoss(nn.Module):
    """Cross entropy of cosines with class vectors.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        temperature: T; 0.05 in Roth et al. 2020, Revisiting, appendix A. Its class vectors learn at 1e-5, on SOP at
            2e-3.
        start: Distribution of the first class vectors, see `class_vectors`.
    """

    def __init__(self, classes: int, dim: int, temperature: float = 0.05, start: str = "uniform") -> None:
        super().__init__()
        self.temperature = temperature
        self.centres = nn.Parameter(class_vectors(classes, dim, start=start))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, len(self.centres))
        return cross_entropy(embeddings / self.temperature @ normalize(self.centres, dim=1).T, labels)
