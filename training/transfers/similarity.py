"""Divergence of the batch's similarities (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation)."""

from __future__ import annotations

from torch import Tensor, nn

from training.divergence import divergence
from zoo.errors import RecipeError


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
        return divergence(student, teacher, self.temperature)
