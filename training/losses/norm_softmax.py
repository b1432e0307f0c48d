"""Normalised softmax (Zhai & Wu 2019, Classification is a Strong Baseline for Deep Metric Learning)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors


class NormSoftmax(nn.Module):
    """Cross entropy of cos(theta_j) / temperature; theta: angles to class vectors.

    Constants of Roth et al. 2020, Revisiting, appendix A: temperature 0.05, class vectors learnt at rate 1e-5 (SOP
    2e-3).
    """

    def __init__(self, classes: int, dim: int, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature
        self.centres = nn.Parameter(class_vectors(classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, len(self.centres))
        return cross_entropy(embeddings / self.temperature @ normalize(self.centres, dim=1).T, labels)
