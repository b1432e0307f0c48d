"""Learnt vectors, one or several a class, and cross entropy on cosines with them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def class_vectors(*shape: int) -> Tensor:
    """Random rows to start from, [..., dim], uniform within +-1/sqrt(dim), as in the code of Roth et al. 2020."""
    bound = shape[-1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound)


def target_cosines(embeddings: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
    """[b]: cosine of each unit embedding [b, d] with its own class's unit vector, of [classes, d]."""
    return (embeddings * vectors.index_select(0, labels)).sum(1)


def shift_target_logits(logits: Tensor, labels: Tensor, shift: Tensor | float) -> Tensor:
    """logits [b, classes] with `shift`, [b] or one number, added to that of each sample's own class; IN PLACE.

    In place, because no matrix of b x classes then has to be copied, neither here nor for the gradient.
    """
    column = torch.as_tensor(shift, dtype=logits.dtype, device=logits.device).expand(len(logits))
    return logits.scatter_add_(1, labels[:, None], column[:, None])


def margin_cross_entropy(logits: Tensor, labels: Tensor, shift: Tensor | float) -> Tensor:
    """Mean cross entropy of logits [b, classes] after `shift_own`."""
    return cross_entropy(shift_target_logits(logits, labels, shift), labels)
