"""Normalised softmax (Zhai & Wu 2019, Classification is a Strong Baseline for Deep Metric Learning).

    L = -mean log(exp(cos theta_y / T) / sum_j exp(cos theta_j / T))

theta_j is the angle between an embedding and the vector of class j; y is its own class.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import MetricLoss, unit_vectors
from training.losses.proxies import class_vectors


class NormalizedSoftmaxLoss(MetricLoss):
    """Cross entropy of cosines with class vectors.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        temperature: T; 0.05 in Roth et al. 2020, Revisiting, appendix A. Its class vectors learn at 1e-5, on SOP at
            2e-3.
        start: Distribution of the first class vectors, see `class_vectors`.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, temperature: float = 0.05, *, start: str = "normal"
    ) -> None:
        super().__init__()
        self.num_classes, self.embedding_size, self.temperature, self.start = (
            num_classes,
            embedding_size,
            temperature,
            start,
        )
        self.centres = nn.Parameter(class_vectors(num_classes, embedding_size, start=start))

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar."""
        logits = batch.rows / self.temperature @ unit_vectors(self.centres, batch.rows).T
        return cross_entropy(logits, batch.labels)
