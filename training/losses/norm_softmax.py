"""Normalised softmax (Zhai & Wu 2019, Classification is a Strong Baseline for Deep Metric Learning).

    L = -mean log(exp(cos theta_y / T) / sum_j exp(cos theta_j / T))

theta_j is the angle between an embedding and the vector of class j; y is its own class.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import unit_vectors
from training.losses.proxies import ClassVectorLoss, class_vectors
from training.pml import ClassParts


class NormalizedSoftmaxLoss(ClassVectorLoss):
    """Cross entropy of cosines with class vectors.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        temperature: T; 0.05 in Roth et al. 2020, Revisiting, appendix A. Its class vectors learn at 1e-5, on SOP at
            2e-3.
        start: Distribution of the first class vectors, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    main_constant = "temperature"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        *,
        start: str = "normal",
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, **parts)
        self.temperature, self.start = temperature, start
        self.centres = self.vectors(class_vectors(num_classes, embedding_size, start=start))

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, None]:
        """Return the terms [b], all of which count."""
        return cross_entropy(self.logits(batch.rows), batch.labels, reduction="none"), None

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows."""
        return rows / self.temperature @ unit_vectors(self.centres, rows).T
