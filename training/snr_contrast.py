"""The contrastive loss of signal-to-noise distances over all pairs of a batch, in few passes over its matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.distances import with_transpose
from training.hinges import per_term
from training.tuples import positive_pairs


def snr_contrast(embeddings: Tensor, labels: Tensor, near: float, far: float, nu: float, active_only: bool) -> Tensor:
    """Mean of [d_ij - near]+ over positive pairs plus mean of [far - d_ij]+ over negative pairs plus nu times
    `training.losses.snr.off_centre`, a scalar.

    Embeddings [b, d], labels int64 [b]. d_ij = |c_i - c_j|^2 / |c_i|^2 of centred rows, 0 where c_i is. With
    active_only both means are over the terms above zero. A mean over nothing is 0. As `training.hinges.contrast` of
    `training.losses.snr.snr_distances`, at two thirds of the time.
    """
    result: Tensor = _SNRContrast.apply(embeddings, labels, near, far, nu, active_only)
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
    def forward(
        ctx: Any, embeddings: Tensor, labels: Tensor, near: float, far: float, nu: float, active_only: bool
    ) -> Tensor:
        mean = embeddings.mean(1, keepdim=True)
        centred = embeddings - mean
        power = torch.linalg.vecdot(centred, centred)[:, None]
        inverse = inverse_power(power)
        anchors, positives = positive_pairs(labels)
        places = anchors * len(labels) + positives
        pushed = _less_than(far, centred, power, inverse)
        pulled = (far - near - pushed.take(places)).relu_()
        terms = pushed.relu_().fill_diagonal_(0).put_(places, torch.zeros_like(pulled)).sum(1, keepdim=True)
        total_near, total_far = pulled.sum(), terms.sum()
        active, active_near = pushed.sign_(), pulled.sign()
        per_near = per_term(active_near, len(places), active_only)
        per_far = per_term(active, len(labels) * (len(labels) - 1) - len(places), active_only)
        # A positive pair counts as so many negative ones, the other way round.
        ratio = -per_near / per_far
        terms[:, 0].index_add_(0, anchors, (active_near * (far - near) - pulled).mul_(ratio))
        ctx.save_for_backward(centred, inverse, mean, active.put_(places, active_near * ratio), terms)
        ctx.far, ctx.nu, ctx.per_far = far, nu, per_far
        return total_near * per_near + total_far * per_far + (nu * embeddings.shape[1]) * mean.abs().mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        centred, inverse, mean, active, terms = ctx.saved_tensors
        scale = inverse * (gradient * (-2 * ctx.per_far))
        noise = scale * torch.sub(terms, active.sum(1, keepdim=True), alpha=ctx.far)
        # Rows that begin a power of two apart share a few sets of the cache, where transposing reads across them.
        apart = active.new_empty(len(active), len(active) + 16)[:, :-16]
        both = with_transpose(torch.mul(active, scale, out=apart))
        own = noise.add_(both.sum(1, keepdim=True))
        off = mean.sign().mul_(gradient * (ctx.nu / len(mean)))
        return torch.addmm(torch.addcmul(off, centred, own), both, centred, alpha=-1), None, None, None, None, None


def _less_than(far: float, centred: Tensor, power: Tensor, inverse: Tensor) -> Tensor:
    """far - d_ij, [b, b]: far - 1 + (2 c_i.c_j - |c_j|^2) / |c_i|^2, as one product of lengthened rows."""
    own = torch.cat([centred * (2 * inverse), -inverse, far - inverse.sign()], dim=1)
    return own @ torch.cat([centred, power, torch.ones_like(power)], dim=1).T
