"""Transfers: losses by which a student learns from a teacher's embeddings.

A transfer is a module called as `transfer(student [b, d], teacher [b, e])` on unit rows of the same b views; it returns
a scalar, without gradient for the teacher. One that compares row by row, and thus needs d = e, has `same_dim = True`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.checkpoint import checkpoint

from training.functional import distances, similarity_divergence
from training.methods import TRANSFERS
from training.recipe import check_same_dim
from zoo.errors import RecipeError
from zoo.models.card import Card


class EmbeddingRegression(nn.Module):
    """Regression to the teacher's embeddings (Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge
    Transfer).

        L = mean_i |s_i - t_i|^2 / 2 = mean_i 1 - s_i . t_i

    It is also the absolute teacher of Yu et al. 2019, Learning Metrics from Teachers: Compact Networks for Image
    Embedding, with the distance squared. The student can search embeddings of the teacher.
    """

    same_dim = True

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss, a scalar, of unit rows, both [b, d]."""
        return (student - teacher.detach()).square().sum(1).mean() / 2


SMALLEST_DISTANCE = 1e-6
"""Distances of unit rows below this are rounding; they give neither a direction nor a unit for other distances."""

MAX_ENTRIES = 2**24
"""Largest number of differences or angles that are computed at a time, which bounds memory."""


class RelationalDistillation(nn.Module):
    """Relational knowledge distillation (Park et al. 2019, Relational Knowledge Distillation).

        L = distance * mean_ij h(d_ij / m) + angle * mean_ijk h(cos_ijk)

    d_ij = |x_i - x_j|, and m is its mean over the pairs i != j (eq. 6). cos_ijk is the cosine of the angle at x_j
    between x_i and x_k, for three different samples (eq. 8). h is the Huber loss, with its bend at 1, of the difference
    of teacher and student (eq. 5). Samples that coincide have no direction: it counts as 0, without gradient. The
    paper's student is not normalised and may choose its scale; ours is searched by cosine and has unit length.

    Args:
        distance: Weight of the distances; 1 in the paper's published command for metric learning (classification: 25).
        angle: Weight of the angles; 2 in the same place (classification: 50).
        published: Use the published code's means, over all b^2 pairs and b^3 triplets, where those with a repeated
            sample are 0, and its m, over distances above 0.

    Raises:
        RecipeError: If a weight is negative, or both are 0.
    """

    def __init__(self, distance: float = 1.0, angle: float = 2.0, published: bool = False) -> None:
        super().__init__()
        if min(distance, angle) < 0 or distance + angle == 0:
            raise RecipeError(
                f"the transfer 'rkd' got the weights distance {distance} and angle {angle}; both must be 0 or more, "
                "and one above 0.",
                code="invalid-value",
            )
        self.distance, self.angle, self.published = distance, angle, published

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss, a scalar, of unit rows [b, d] and [b, e]; below two samples it is 0, below three without
        angles.
        """
        teacher = teacher.detach()
        loss = 0 * student.sum()
        if self.distance and len(student) > 1:
            loss = loss + self.distance * self._distances(student, teacher)
        if self.angle and len(student) > 2:
            loss = loss + self.angle * self._angles(student, teacher)
        return loss

    def _distances(self, student: Tensor, teacher: Tensor) -> Tensor:
        inputs, targets = (_relative_distances(distances(rows), self.published) for rows in (student, teacher))
        b = len(student)
        return smooth_l1_loss(inputs, targets, reduction="sum") / (b * (b if self.published else b - 1))

    def _angles(self, student: Tensor, teacher: Tensor) -> Tensor:
        b = len(student)
        size = max(1, MAX_ENTRIES // (b * max(b, student.shape[1], teacher.shape[1])))
        parts = [slice(start, start + size) for start in range(0, b, size)]
        # With several parts the activations are computed again for the gradient: memory would grow with b^3 otherwise.
        recompute = len(parts) > 1 and student.requires_grad
        sums = [
            checkpoint(self._angles_at, student, teacher, part, use_reentrant=False)
            if recompute
            else self._angles_at(student, teacher, part)
            for part in parts
        ]
        count = b**3 if self.published else b * (b - 1) * (b - 2)
        return torch.stack(sums).sum() / count

    def _angles_at(self, student: Tensor, teacher: Tensor, vertices: slice) -> Tensor:
        """Return the sum over the angles at some of the samples."""
        inputs, targets = (_angle_cosines(rows, vertices) for rows in (student, teacher))
        total = smooth_l1_loss(inputs, targets, reduction="sum")
        if self.published:
            return total
        pairs = (
            inputs.diagonal(dim1=1, dim2=2),
            targets.diagonal(dim1=1, dim2=2),
        )  # i = k is not a triplet
        return total - smooth_l1_loss(*pairs, reduction="sum")


def _relative_distances(matrix: Tensor, above_zero: bool = False) -> Tensor:
    """Return distances [b, b] divided by their mean over pairs of two samples, or (above_zero) over those above 0."""
    b = len(matrix)
    count = (matrix > 0).sum().clamp(min=1) if above_zero else b * (b - 1)
    return matrix / (matrix.sum() / count).clamp(min=SMALLEST_DISTANCE)


def _angle_cosines(rows: Tensor, vertices: slice) -> Tensor:
    """Return the cosines [v, b, b] of the angles at v vertices between any two of the rows [b, d]."""
    differences = rows - rows[vertices, None]
    squared = differences.square().sum(2, keepdim=True)
    # An infinite length instead of 0: its inverse is 0, and so is its gradient.
    unit = differences * squared.masked_fill(squared <= SMALLEST_DISTANCE**2, torch.inf).rsqrt()
    return unit @ unit.transpose(1, 2)


class SimilarityDistillation(nn.Module):
    """Divergence of the batch's similarities (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation).

        L = mean_i T^2 KL(softmax_j(t_i . t_j / T) || softmax_j(s_i . s_j / T)), i and j over the batch

    The paper teaches a head from wider heads of the same network. Its weight of 50 balances other losses, which a
    student does not have, and is omitted.

    Args:
        temperature: T; 1 in the published code. A lower one stresses near neighbours.

    Raises:
        RecipeError: If the temperature is not positive.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise RecipeError(
                f"the transfer 'similarity' got the temperature {temperature}; it must be above 0.",
                code="invalid-value",
            )
        self.temperature = temperature

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the loss, a scalar, of unit rows [b, d] and [b, e]."""
        return similarity_divergence(student, teacher, self.temperature)


def needs_same_dim(transfer: str) -> bool:
    """Return whether a transfer compares embeddings number by number; its attribute `same_dim` says so."""
    return getattr(TRANSFERS[transfer], "same_dim", False)


def check_dims(transfer: str, dim: int, teacher: Card) -> None:
    """Raise `RecipeError` for a transfer that cannot compare embeddings of these dimensions."""
    if needs_same_dim(transfer):
        check_same_dim(transfer, dim, teacher, [name for name in TRANSFERS if not needs_same_dim(name)])
