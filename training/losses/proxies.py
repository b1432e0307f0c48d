"""Class vectors of the proxy losses, and cross entropy of cosines with them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def class_vectors(*shape: int) -> Tensor:
    """Return random rows [..., dim], uniform within +-1/sqrt(dim), as in the code of Roth et al. 2020."""
    bound = shape[-1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound)


def target_cosines(embeddings: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
    """Return the cosine of each unit embedding with the vector of its class.

    Args:
        embeddings: Unit rows [b, d].
        vectors: Unit rows [classes, d].
        labels: int64 [b].

    Returns:
        The cosines [b].
    """
    return (embeddings * vectors.index_select(0, labels)).sum(1)


def shift_target_logits(logits: Tensor, labels: Tensor, shift: Tensor | float) -> Tensor:
    """Add a shift to the logit of each sample's class, IN PLACE.

    In place, because no matrix of b x classes has to be copied then, neither here nor for the gradient.

    Args:
        logits: [b, classes].
        labels: int64 [b].
        shift: [b], or one number.

    Returns:
        The same logits [b, classes].
    """
    column = torch.as_tensor(shift, dtype=logits.dtype, device=logits.device).expand(len(logits))
    return logits.scatter_add_(1, labels[:, None], column[:, None])


def margin_cross_entropy(logits: Tensor, labels: Tensor, shift: Tensor | float) -> Tensor:
    """Return the mean cross entropy of logits [b, classes] after `shift_target_logits`."""
    return cross_entropy(shift_target_logits(logits, labels, shift), labels)
