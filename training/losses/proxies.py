"""Class vectors of the proxy losses, their start, and logits of cosines with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.batch import EmbeddingBatch
from training.losses.base import ElementLoss
from training.pml import ClassParts, Parts, Terms
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


class ClassVectorLoss(ElementLoss):
    """A loss that compares embeddings with learnt vectors of the classes.

    A subclass sets the parameter `centres` or `proxies` to what `vectors` returns, and defines `logits`.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        weight_regularizer: Is added, times `weight_reg_weight`; it gets the class vectors as rows.
        weight_reg_weight: Its weight.
        weight_init_func: Fills the first class vectors in place; they are columns there, as in pytorch-metric-learning,
            but proxies are rows.
        parts: See `MetricLoss`.
    """

    own_distance = "CosineSimilarity(power=1)"
    weighs_samples = True
    fills_rows = False
    num_classes: int

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        weight_regularizer: Callable[[Tensor], Tensor] | None = None,
        weight_reg_weight: float = 1.0,
        weight_init_func: Callable[[Tensor], Any] | None = None,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(**parts)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.weight_regularizer, self.weight_reg_weight = weight_regularizer, weight_reg_weight
        self.weight_init_func = weight_init_func

    def vectors(self, start: Tensor) -> nn.Parameter:
        """Return the first class vectors, [classes, d] or [centres, classes, d]: these, or such as the user's."""
        if self.weight_init_func is None:
            return nn.Parameter(start)
        rows = start.new_empty(start.numel() // start.shape[-1], start.shape[-1])
        filled = rows if self.fills_rows else rows.T.contiguous()
        self.weight_init_func(filled)
        return nn.Parameter(_from_rows(filled if self.fills_rows else filled.T, start))

    @property
    def W(self) -> Tensor:  # noqa: N802  # its name in pytorch-metric-learning
        """The class vectors as columns [d, classes], or [d, classes x centres] with those of a class side by side."""
        (vectors,) = self.parameters(recurse=False)
        return vectors.transpose(0, -2).reshape(-1, vectors.shape[-1]).T

    @W.setter
    def W(self, columns: Tensor) -> None:  # noqa: N802
        (vectors,) = self.parameters(recurse=False)
        vectors.data = _from_rows(columns.detach().T, vectors).clone()

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits [b, classes] of embeddings [b, d], without a margin."""
        return self.logits(normalize(embeddings, dim=1))

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows, without a margin."""
        raise NotImplementedError

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name."""
        penalties = super().penalties(batch, embeddings)
        if self.weight_regularizer is not None:
            penalty = self.weight_regularizer(self.W.T) * self.weight_reg_weight
            penalties["weight_reg_loss"] = Terms(penalty, None, "already_reduced")
        return penalties


def _from_rows(rows: Tensor, vectors: Tensor) -> Tensor:
    """Return rows [classes x centres, d], those of a class side by side, in the shape of class vectors."""
    return rows.reshape(vectors.transpose(0, -2).shape).transpose(0, -2).contiguous()


class ClassificationLoss(ClassVectorLoss):
    """Cross entropy of logits in which the own class is shifted by a margin.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        start: Distribution of the first class vectors, see `class_vectors`.
        per_class: Class vectors per class: the first axis of the parameter `centres`, if above 0.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, start: str, per_class: int = 0, **parts: Unpack[ClassParts]
    ) -> None:
        super().__init__(num_classes, embedding_size, **parts)
        self.start = start
        shape = [per_class] * (per_class > 0)
        self.centres = self.vectors(class_vectors(*shape, num_classes, embedding_size, start=start))

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, None]:
        """Return the terms [b], all of which count."""
        return cross_entropy(self.shifted_logits(batch.rows, batch.labels), batch.labels, reduction="none"), None

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
