"""Products and Euclidean distances of rows; gradients stay finite where two rows coincide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """|e_i - e_j|_2 for index pairs: embeddings [b, d], i and j int64 [t], result [t]. Gradient 0 at distance 0."""
    result: Tensor = _PairDistances.apply(embeddings, i, j)
    return result


def triplet_distances(embeddings: Tensor, anchors: Tensor, others: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """|e_a - e_o|_2 and |e_a - e_m|_2 of triplets: embeddings [b, d], indices int64 [t], results [t] each.

    As `pair_distances`, but the anchors' rows are gathered once.
    """
    result: tuple[Tensor, Tensor] = _TripletDistances.apply(embeddings, anchors, others, more)
    return result


def unit_distances(embeddings: Tensor) -> Tensor:
    """|e_i - e_j|_2 of unit rows [b, d] as [b, b], from one matrix product; without gradient."""
    with torch.no_grad():
        return (2 - 2 * embeddings @ embeddings.T).clamp(min=0).sqrt()


def products(embeddings: Tensor) -> Tensor:
    """e_i . e_j of rows [b, d] as [b, b]; the cosines of unit rows."""
    result: Tensor = _Products.apply(embeddings)
    return result


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
        return (grad + grad.T) @ embeddings


class _Distances(torch.autograd.Function):
    """As `_Products`: d_ij moves e_i along (e_i - e_j) / d_ij, and e_j against it."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        lengths = embeddings.square().sum(1)
        squared = torch.addmm(lengths[:, None] + lengths, embeddings, embeddings.T, alpha=-2)
        result = squared.clamp_(min=0).sqrt_().fill_diagonal_(0)
        ctx.save_for_backward(embeddings, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        embeddings, result = ctx.saved_tensors
        pull = (grad / result).masked_fill_(result == 0, 0)
        pull = pull + pull.T
        return embeddings * pull.sum(1, keepdim=True) - pull @ embeddings


class _PairDistances(torch.autograd.Function):
    """A third of the passes over [t, d] that autograd would make."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
        difference = embeddings.index_select(0, i).sub_(embeddings.index_select(0, j))
        result: Tensor = torch.linalg.vector_norm(difference, dim=1)
        ctx.save_for_backward(difference, result, i, j)
        ctx.rows = len(embeddings)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        difference, result, i, j = ctx.saved_tensors
        pull = difference * (grad / result).masked_fill_(result == 0, 0)[:, None]
        moved = pull.new_zeros(ctx.rows, pull.shape[1])
        return moved.index_add_(0, i, pull).index_add_(0, j, pull, alpha=-1), None, None


class _TripletDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, a: Tensor, o: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        anchors = embeddings.index_select(0, a)
        other = embeddings.index_select(0, o).sub_(anchors).neg_()
        more = anchors.sub_(embeddings.index_select(0, m))
        results = torch.linalg.vector_norm(other, dim=1), torch.linalg.vector_norm(more, dim=1)
        ctx.save_for_backward(other, more, *results, a, o, m)
        ctx.rows = len(embeddings)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_other: Tensor, of_more: Tensor) -> tuple[Tensor, None, None, None]:
        other, more, far, farther, a, o, m = ctx.saved_tensors
        pull = other * (of_other / far).masked_fill_(far == 0, 0)[:, None]
        push = more * (of_more / farther).masked_fill_(farther == 0, 0)[:, None]
        moved = pull.new_zeros(ctx.rows, pull.shape[1])
        moved.index_add_(0, o, pull, alpha=-1).index_add_(0, m, push, alpha=-1)
        return moved.index_add_(0, a, pull.add_(push)), None, None, None


def mean_norm(embeddings: Tensor, squared: bool) -> Tensor:
    """Mean length of rows [b, d], or mean squared length: a scalar that holds embeddings near the origin."""
    if squared:
        return embeddings.square().sum(1).mean()
    return torch.linalg.vector_norm(embeddings, dim=1).mean()
