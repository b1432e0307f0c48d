"""Euclidean distances between rows, with gradients that stay finite where two rows coincide."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """|e_i - e_j|_2 for index pairs: embeddings [b, d], i and j int64 [t], result [t]. Gradient 0 at distance 0."""
    # index_select, because its backward is several times as fast as that of embeddings[i].
    difference = embeddings.index_select(0, i) - embeddings.index_select(0, j)
    distances: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return distances


def unit_distances(embeddings: Tensor) -> Tensor:
    """|e_i - e_j|_2 of unit rows [b, d] as [b, b], from one matrix product; without gradient."""
    with torch.no_grad():
        return (2 - 2 * embeddings @ embeddings.T).clamp(min=0).sqrt()


def mean_norm(embeddings: Tensor, squared: bool) -> Tensor:
    """Mean length of rows [b, d], or mean squared length: a scalar that holds embeddings near the origin."""
    if squared:
        return embeddings.square().sum(1).mean()
    return torch.linalg.vector_norm(embeddings, dim=1).mean()
