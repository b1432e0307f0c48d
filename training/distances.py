"""Products and Euclidean distances of rows; gradients stay finite where two rows coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_PIECE = 256
"""Pairs at a time on a CPU: their rows stay in its cache. On other devices each piece would be a launch of its own."""

_ROUNDING = 16
"""Squares of distances up to so many units of rounding of |e_i|^2 + |e_j|^2 are 0: of rows that coincide the product
leaves as much, more or less by the processor, and means over terms above zero would count them. Unit rows in float32
nearer than .002 coincide so: of such a distance a quarter is rounding."""

_FLOAT32 = torch.finfo(torch.float32).eps
"""The coarsest rounding that is taken for it: by bfloat16's, rows half a unit apart would coincide."""


def pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """|e_i - e_j|_2 for index pairs: embeddings [b, d], i and j int64 [t], result [t]. Gradient 0 at distance 0."""
    result: Tensor = _PairDistances.apply(embeddings, i, j)
    return result


def triplet_distances(embeddings: Tensor, anchors: Tensor, others: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """|e_a - e_o|_2 and |e_a - e_m|_2 of triplets: embeddings [b, d], indices int64 [t], results [t] each."""
    both = pair_distances(embeddings, torch.cat([anchors, anchors]), torch.cat([others, more]))
    return both[: len(anchors)], both[len(anchors) :]


def unit_distances(embeddings: Tensor) -> Tensor:
    """|e_i - e_j|_2 of unit rows [b, d] as [b, b], from one matrix product; without gradient."""
    with torch.no_grad():
        return (2 - 2 * embeddings @ embeddings.T).clamp(min=0).sqrt()


def products(embeddings: Tensor) -> Tensor:
    """e_i . e_j of rows [b, d] as [b, b]; the cosines of unit rows."""
    result: Tensor = _Products.apply(embeddings)
    return result


def with_transpose(matrix: Tensor) -> Tensor:
    """matrix + its transpose, [b, b]. Copying transposes in blocks; reading columns costs up to three times as much."""
    return matrix.T.clone(memory_format=torch.contiguous_format).add_(matrix)


def distances(embeddings: Tensor) -> Tensor:
    """|e_i - e_j|_2 of rows [b, d] as [b, b], from one matrix product. Gradient 0 at distance 0."""
    result: Tensor = _Distances.apply(embeddings)
    return result


class _Products(torch.autograd.Function):
    """The matrix is symmetric, so that its gradient takes one more product instead of two."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        ctx.save_for_backward(embeddings)
        return embeddings @ embeddings.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (embeddings,) = ctx.saved_tensors
        return with_transpose(grad) @ embeddings


class _Distances(torch.autograd.Function):
    """As `_Products`: d_ij moves e_i along (e_i - e_j) / d_ij, and e_j against it."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        lengths = embeddings.square().sum(1)
        sums = lengths[:, None] + lengths
        squared = torch.addmm(sums, embeddings, embeddings.T, alpha=-2)
        # What is not finite is below nothing, and stays visible.
        coincide = squared < sums.mul_(_ROUNDING * min(torch.finfo(sums.dtype).eps, _FLOAT32))
        result = squared.masked_fill_(coincide, 0).sqrt_().fill_diagonal_(0)
        ctx.save_for_backward(embeddings, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        embeddings, result = ctx.saved_tensors
        pull = with_transpose(_pull(grad, result))
        return embeddings * pull.sum(1, keepdim=True) - pull @ embeddings


class _PairDistances(torch.autograd.Function):
    """In pieces, and with no [t, d] kept for the gradient: passes over memory cost more here than the arithmetic."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
        piece = _PIECE if embeddings.device.type == "cpu" else max(1, len(i))
        pieces = zip(i.split(piece), j.split(piece), strict=True)
        result = torch.cat([_lengths(embeddings, *pairs) for pairs in pieces])
        ctx.save_for_backward(embeddings, result, i, j)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        embeddings, result, i, j = ctx.saved_tensors
        pull = _pull(grad, result)
        # A product with the sparse matrix of the pairs' weights: twice as fast as adding row by row.
        rows, others, pulls = torch.cat([i, j]), torch.cat([j, i]), torch.cat([pull, pull])
        shape = len(embeddings), len(embeddings)
        matrix = torch.sparse_coo_tensor(torch.stack([rows, others]), pulls, shape, check_invariants=False)
        own = pulls.new_zeros(len(embeddings)).index_add_(0, rows, pulls)
        return embeddings * own[:, None] - matrix @ embeddings, None, None


def _lengths(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    difference = embeddings.index_select(0, i).sub_(embeddings.index_select(0, j))
    result: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return result


def _pull(grad: Tensor, distance: Tensor) -> Tensor:
    return (grad / distance).masked_fill_(distance == 0, 0)


def mean_norm(embeddings: Tensor, squared: bool) -> Tensor:
    """Mean length of rows [b, d], or mean squared length: a scalar that holds embeddings near the origin."""
    if squared:
        return embeddings.square().sum(1).mean()
    return torch.linalg.vector_norm(embeddings, dim=1).mean()
