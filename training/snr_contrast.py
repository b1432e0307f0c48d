"""The contrastive loss of signal-to-noise distances over all pairs of a batch, in few passes over its matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.distances import with_transpose
from training.hinges import per_term
from training.tuples import positive_pairs


def snr_contrast(embeddings: Tensor, labels: Tensor, near: float, far: float, active_only: bool) -> Tensor:
    """Mean of [d_ij - near]+ over positive pairs plus mean of [far - d_ij]+ over negative pairs, a scalar.

    Embeddings [b, d], labels int64 [b]. d_ij = |c_i - c_j|^2 / |c_i|^2 of centred rows, 0 where c_i is. With
    active_only both means are over the terms above zero. A mean over nothing is 0. As `training.hinges.contrast` of
    `training.losses.snr.snr_distances`, at two thirds of the time.
    """
    result: Tensor = _SNRContrast.apply(embeddings, labels, near, far, active_only)
    return result


def inverse_power(power: Tensor) -> Tensor:
    """One over the power; 0 for a row that has none."""
    tiny = torch.finfo(power.dtype).eps
    return (power > tiny) / power.clamp(min=tiny)


class _SNRContrast(torch.autograd.Function):
    """The gradient needs which negatives are nearer than far, but no distance: the sum of theirs is that of the terms.

    With A_ij = gradient_ij / |c_i|^2 half of the gradient of c_k is c_k (sum_j (A_jk + A_kj - A_kj d_kj)) less
    sum_j (A_kj + A_jk) c_j. It is a sum of centred rows, so that centring leaves it as it is.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, labels: Tensor, near: float, far: float, active_only: bool) -> Tensor:
        centred = embeddings - embeddings.mean(1, keepdim=True)
        power = torch.linalg.vecdot(centred, centred)[:, None]
        inverse = inverse_power(power)
        anchors, positives = positive_pairs(labels)
        places = anchors * len(labels) + positives
        pushed = _less_than(far, centred, power, inverse)
        pulled = (far - near - pushed.take(places)).relu_()
        terms = pushed.relu_().fill_diagonal_(0).put_(places, torch.zeros_like(pulled)).sum(1, keepdim=True)
        total_near, total_far = pulled.sum(), terms.sum()
        active = pushed.sign_()
        ctx.per_near = per_term(pulled.sign(), len(places), active_only)
        ctx.per_far = per_term(active, len(labels) * (len(labels) - 1) - len(places), active_only)
        ctx.near, ctx.far = near, far
        ctx.save_for_backward(centred, inverse, anchors, places, pulled, terms, active)
        return total_near * ctx.per_near + total_far * ctx.per_far

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        centred, inverse, anchors, places, pulled, terms, active = ctx.saved_tensors
        pull, push = pulled.sign().mul_(gradient * ctx.per_near), gradient * -ctx.per_far
        noise = torch.sub(ctx.far * active.sum(1, keepdim=True), terms).mul_(push)
        noise[:, 0].index_add_(0, anchors, pull * (pulled + ctx.near))
        # Rows that begin a power of two apart share a few sets of the cache, where transposing reads across them.
        apart = active.new_empty(len(active), len(active) + 16)[:, :-16]
        scaled = torch.mul(active, inverse * push, out=apart).put_(places, pull * inverse[anchors, 0])
        both = with_transpose(scaled)
        weights = both.sum(1, keepdim=True) - inverse * noise
        return torch.addmm(centred * weights, both, centred, beta=2, alpha=-2), None, None, None, None


def _less_than(far: float, centred: Tensor, power: Tensor, inverse: Tensor) -> Tensor:
    """far - d_ij, [b, b]: far - 1 + (2 c_i.c_j - |c_j|^2) / |c_i|^2, as one product of lengthened rows."""
    own = torch.cat([centred * (2 * inverse), -inverse, far - inverse.sign()], dim=1)
    return own @ torch.cat([centred, power, torch.ones_like(power)], dim=1).T
