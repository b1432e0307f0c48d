"""Adversarial decorrelation of two embeddings (Sharing Matters, section 3.3; DiVA, section 3.3)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from zoo.errors import RecipeError


class Decorrelation(nn.Module):
    """-c, where c = mean over the batch and over D of (R(a) * p(R(b)))^2: how much of a can be told from b.

    p is a two-layer ReLU regressor dim_b -> width -> dim_a with unit output; R leaves a value as it is and turns its
    gradient around. Descending -c thus moves p up the correlation c, so that it finds what the embeddings share, and
    moves both embeddings down it, so that they share less. Add `weight * decorrelation(a, b)` to the loss.

    Sources: Milbich, Roth et al. 2020, Sharing Matters, and the published code of DiVA (Milbich, Roth et al. 2020).
    DiVA's paper writes a sum over D: `sum_over_dim`, which makes c D times as large. Width 512: MIC and DiVA.
    """

    def __init__(self, dim_a: int, dim_b: int, width: int = 512, sum_over_dim: bool = False) -> None:
        super().__init__()
        if min(dim_a, dim_b, width) < 1:
            raise RecipeError(f"decorrelation needs dims and a width of at least 1, not {(dim_a, dim_b, width)}.")
        self.regressor = nn.Sequential(nn.Linear(dim_b, width), nn.ReLU(), nn.Linear(width, dim_a))
        self.sum_over_dim = sum_over_dim

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Scalar -c, zero or less, of unit embeddings a [n, dim_a] and b [n, dim_b] of the same n samples."""
        predicted = normalize(self.regressor(reverse_gradient(b)).float(), dim=1)
        squares = (reverse_gradient(a).float() * predicted).square()
        return -(squares.sum(1) if self.sum_over_dim else squares.mean(1)).mean()


def reverse_gradient(values: Tensor) -> Tensor:
    """The same values, whose gradient arrives with the opposite sign (Ganin and Lempitsky 2015)."""
    # 2x - x is x exactly in floating point
    return 2 * values.detach() - values
