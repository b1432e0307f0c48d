"""Regression to the teacher's embeddings (Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge Transfer).

It is also the absolute teacher of Yu et al. 2019, Learning Metrics from Teachers: Compact Networks for Image Embedding,
but for the square of the distance.
"""

from __future__ import annotations

from torch import Tensor, nn


class EmbeddingRegression(nn.Module):
    """Mean over the views of |s_i - t_i|^2 / 2, which of unit rows is 1 - s_i . t_i.

    The student's embeddings come to lie where the teacher's do, so that it can search what the teacher embedded.
    """

    same_dim = True

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Scalar loss of unit rows, both [b, d]."""
        return (student - teacher.detach()).square().sum(1).mean() / 2
