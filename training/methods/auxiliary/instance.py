"""Every image a class (Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from training.methods.auxiliary.task import Auxiliary
from training.minibatch import Minibatch
from zoo.errors import RecipeError


class Instance(Auxiliary):
    """-log(exp(v_i . f_i / T) / sum_j exp(v_j . f_i / T)) over all training samples j, eq. 2.

    f: the head's unit embedding; v: a bank of one unit vector a sample, random at first, that after each step moves to
    f by momentum. The sum is whole instead of estimated: at tens of thousands of samples that is one small product.
    Temperature T 0.07: the paper's; momentum 0.5: its published code's.
    """

    bank: Tensor

    def __init__(self, dim: int, samples: int, seed: int, temperature: float = 0.07, momentum: float = 0.5) -> None:
        super().__init__()
        if temperature <= 0 or not 0 <= momentum < 1:
            raise RecipeError("instance takes a temperature above 0 and a momentum from 0 to below 1.")
        self.temperature, self.momentum = temperature, momentum
        random = torch.randn(samples, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("bank", normalize(random, dim=1))
        self._embedded: Tensor | None = None

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        unit = normalize(raw, dim=1)
        self._embedded = unit.detach()
        return cross_entropy(unit @ self.bank.T / self.temperature, batch.samples)

    def end_step(self, batch: Minibatch) -> None:
        if self._embedded is None:
            return
        rows, first = _first_places(batch.samples)
        moved = self.bank[rows].lerp(self._embedded[first], 1 - self.momentum)
        self.bank[rows] = normalize(moved, dim=1)
        self._embedded = None


def _first_places(values: Tensor) -> tuple[Tensor, Tensor]:
    """The different values of int64 [b], and where each occurs first."""
    different, inverse = values.unique(return_inverse=True)
    places = torch.arange(len(values), device=values.device)
    first = torch.full_like(different, len(values)).scatter_reduce(0, inverse, places, "amin")
    return different, first
