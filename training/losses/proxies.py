"""Class vectors of the proxy losses, their start, and logits of cosines with them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import MetricLoss
from zoo.errors import RecipeError, nearest

STARTS = ("uniform", "eighth", "normal", "kaiming")
"""Distributions from which class vectors start; see `class_vectors`."""


def class_vectors(*shape: int, start: str = "uniform") -> Tensor:
    """Return random rows [..., dim] from which class vectors start.

    Only the direction of a class vector has an effect on a loss, but its length decides how far a step turns it: a
    learning rate that was searched with one start does not suit another.

    Args:
        shape: The shape, whose last number is dim.
        start: "uniform", within +-1/sqrt(dim), as in the code of Roth et al. 2020; "eighth", normal with standard
            deviation 1/8, as there for ProxyNCA; "normal", N(0, 1), and "kaiming", uniform within +-1/sqrt(rows), as
            in pytorch-metric-learning (SoftTriple), with which the rates of Musgrave et al. 2020, Reality, were
            searched.

    Raises:
        RecipeError: If the start is unknown.
    """
    if start not in STARTS:
        raise RecipeError(
            f"start is {start!r}; choose one of {', '.join(STARTS)}.{nearest(start, STARTS)}", code="unknown-name"
        )
    if start in ("normal", "eighth"):
        return torch.randn(shape) * (1.0 if start == "normal" else 1 / 8)
    # Kaiming's fan is the number of columns of a matrix [dim, rows], as that library stores the vectors.
    bound = (shape[-1] if start == "uniform" else math.prod(shape[:-1])) ** -0.5
    return torch.empty(shape).uniform_(-bound, bound)


class ClassificationLoss(MetricLoss):
    """Cross entropy of logits in which the own class is shifted by a margin.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        start: Distribution of the first class vectors, see `class_vectors`.
        per_class: Class vectors per class: the first axis of the parameter `centres`, if above 0.
    """

    def __init__(self, num_classes: int, embedding_size: int, start: str, per_class: int = 0) -> None:
        super().__init__()
        self.num_classes, self.embedding_size, self.start = num_classes, embedding_size, start
        shape = [per_class] * (per_class > 0)
        self.centres = nn.Parameter(class_vectors(*shape, num_classes, embedding_size, start=start))

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar."""
        return cross_entropy(self.shifted_logits(batch.rows, batch.labels), batch.labels)

    def shifted_logits(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows with the margin, whose cross entropy is the loss."""
        raise NotImplementedError


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
