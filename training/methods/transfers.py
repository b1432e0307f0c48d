"""Embedding, RKD, similarity.

Regression to the teacher's embeddings (Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge Transfer).

It is also the absolute teacher of Yu et al. 2019, Learning Metrics from Teachers: Compact Networks for Image Embedding,
but for the square of the distance.

Relational knowledge distillation (Park et al. 2019, Relational Knowledge Distillation, CVPR).

Divergence of the batch's similarities (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation).

What a student learns from a teacher's embeddings, by name.

Each is a module called as `transfer(student [b, d], teacher [b, e]) -> scalar` on unit rows of the same b views; no
gradient reaches the teacher. One that compares the two row by row, and so needs d = e, says `same_dim = True`.

What is said where a student's embeddings cannot be compared with its teacher's; needs no torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.checkpoint import checkpoint

from training.functional import distances, similarity_divergence
from zoo.errors import RecipeError


class EmbeddingRegression(nn.Module):
    """Mean over the views of |s_i - t_i|^2 / 2, which of unit rows is 1 - s_i . t_i.

    The student's embeddings come to lie where the teacher's do, so that it can search what the teacher embedded.
    """

    same_dim = True

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Scalar loss of unit rows, both [b, d]."""
        return (student - teacher.detach()).square().sum(1).mean() / 2


SMALLEST_DISTANCE = 1e-6
"""Distances of unit rows below this are rounding: they give no direction, and no unit to measure others in."""

MAX_ENTRIES = 2**24
"""How many numbers the differences or angles of a part of the batch may be, so that memory stays bounded."""


class RelationalDistillation(nn.Module):
    """distance * mean_ij h(d_ij / m) + angle * mean_ijk h(cos_ijk): the student's relations beside the teacher's.

    d_ij = |x_i - x_j| and m its mean over the pairs i != j (eq. 6); cos_ijk is the cosine of the angle at x_j between
    x_i and x_k, over triplets of three samples (eq. 8); h is the Huber loss of the difference of teacher and student,
    with its bend at 1 (eq. 5). Student and teacher may be of any two dimensions. Weights as the paper's published
    command for metric learning has them: distance 1, angle 2 (for classification the paper has 25 and 50).

    published: the published code's means, over all b^2 pairs and b^3 triplets, of which those with a sample twice are
    0, and its m, of distances above 0. The paper's student is not of unit length, so that it may choose its own scale;
    ours is, since it is searched by cosine.

    Of samples that coincide no direction is known: they count as 0 and pass no gradient.
    """

    def __init__(self, distance: float = 1.0, angle: float = 2.0, published: bool = False) -> None:
        super().__init__()
        if min(distance, angle) < 0 or distance + angle == 0:
            raise RecipeError(
                "the transfer 'rkd' needs weights of 0 or more, one of them above 0, not distance "
                f"{distance} and angle {angle}."
            )
        self.distance, self.angle, self.published = distance, angle, published

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Scalar loss of unit rows [b, d] and [b, e]. Below two samples there are no relations: 0, below three no
        angles."""
        teacher = teacher.detach()
        loss = 0 * student.sum()
        if self.distance and len(student) > 1:
            loss = loss + self.distance * self._distances(student, teacher)
        if self.angle and len(student) > 2:
            loss = loss + self.angle * self._angles(student, teacher)
        return loss

    def _distances(self, student: Tensor, teacher: Tensor) -> Tensor:
        ours, theirs = (relative_distances(distances(rows), self.published) for rows in (student, teacher))
        b = len(student)
        return smooth_l1_loss(ours, theirs, reduction="sum") / (b * (b if self.published else b - 1))

    def _angles(self, student: Tensor, teacher: Tensor) -> Tensor:
        b = len(student)
        each = max(1, MAX_ENTRIES // (b * max(b, student.shape[1], teacher.shape[1])))
        parts = [slice(start, start + each) for start in range(0, b, each)]
        # With several parts their activations are computed again, else memory would grow with b^3 after all.
        again = len(parts) > 1 and student.requires_grad
        sums = [
            checkpoint(self._angles_at, student, teacher, part, use_reentrant=False)
            if again
            else self._angles_at(student, teacher, part)
            for part in parts
        ]
        count = b**3 if self.published else b * (b - 1) * (b - 2)
        return torch.stack(sums).sum() / count

    def _angles_at(self, student: Tensor, teacher: Tensor, vertices: slice) -> Tensor:
        """The sum over the angles at some of the samples."""
        ours, theirs = (angle_cosines(rows, vertices) for rows in (student, teacher))
        total = smooth_l1_loss(ours, theirs, reduction="sum")
        if self.published:
            return total
        pairs = ours.diagonal(dim1=1, dim2=2), theirs.diagonal(dim1=1, dim2=2)  # i = k: no triplet
        return total - smooth_l1_loss(*pairs, reduction="sum")


def relative_distances(matrix: Tensor, above_zero: bool = False) -> Tensor:
    """Distances [b, b] in units of their mean over pairs of two samples; above_zero: over those that are not 0."""
    b = len(matrix)
    count = (matrix > 0).sum().clamp(min=1) if above_zero else b * (b - 1)
    return matrix / (matrix.sum() / count).clamp(min=SMALLEST_DISTANCE)


def angle_cosines(rows: Tensor, vertices: slice) -> Tensor:
    """[v, b, b]: at each of v vertices among rows [b, d], the cosine of the angle between any two rows."""
    differences = rows - rows[vertices, None]
    squared = differences.square().sum(2, keepdim=True)
    # Infinite in the place of a length that is 0: its inverse is 0, and so is its gradient.
    unit = differences * squared.masked_fill(squared <= SMALLEST_DISTANCE**2, torch.inf).rsqrt()
    return unit @ unit.transpose(1, 2)


class SimilarityDistillation(nn.Module):
    """Mean over i of T^2 KL(softmax_j(t_i . t_j / T) || softmax_j(s_i . s_j / T)); j runs over the batch, i too.

    There it teaches a head from wider heads beside it, here a student from a model that is there. temperature: T, by
    default that of its published code; a lower one looks at near neighbours more. Its weight there, 50, is left out: it
    would weigh against losses that a student has not.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise RecipeError(f"the transfer 'similarity' needs a temperature above 0, not {temperature}.")
        self.temperature = temperature

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Scalar loss of unit rows [b, d] and [b, e]."""
        return similarity_divergence(student, teacher, self.temperature)


TRANSFERS: dict[str, type[nn.Module]] = {
    "embedding": EmbeddingRegression,
    "rkd": RelationalDistillation,
    "similarity": SimilarityDistillation,
}
