"""Learnt vectors, one or several a class, and cross entropy on cosines with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize


def class_vectors(classes: int, dim: int) -> nn.Parameter:
    """[classes, dim], uniform within +-1/sqrt(dim), as in the code published with Roth et al. 2020."""
    return nn.Parameter(torch.empty(classes, dim).uniform_(-(dim**-0.5), dim**-0.5))


def cosines(embeddings: Tensor, vectors: Tensor) -> Tensor:
    """[b, classes]: cosines of unit embeddings [b, d] with vectors [classes, d] of any length."""
    return embeddings @ normalize(vectors, dim=1).T


def target_cross_entropy(similarities: Tensor, targets: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Mean cross entropy of scale * similarities [b, classes], that of the own class replaced by targets [b]."""
    return cross_entropy(scale * similarities.scatter(1, labels[:, None], targets[:, None]), labels)


def own(similarities: Tensor, labels: Tensor) -> Tensor:
    """[b]: the similarity of each sample with its own class, from [b, classes]."""
    return similarities.gather(1, labels[:, None]).squeeze(1)
