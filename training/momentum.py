"""A slow copy of a network, as He et al. 2020 (Momentum Contrast for Unsupervised Visual Representation Learning)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from zoo.errors import RecipeError


class Momentum(nn.Module):
    """`average`: a network that starts as `live` and follows it, average <- m average + (1 - m) live.

    It gets no gradient and stays in evaluation mode, so that what it says of an image depends on no other image of the
    batch. Buffers are copied: running statistics are averages already. The live network is not registered here.
    """

    def __init__(self, live: nn.Module, momentum: float) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise RecipeError(f"momentum must be from 0 to below 1, not {momentum!r}.")
        self.momentum, self._live = momentum, (live,)
        self.average = copy.deepcopy(live).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Momentum:
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def update(self) -> None:
        """One step toward the live network as it is now."""
        for slow, live in zip(self.average.parameters(), self._live[0].parameters(), strict=True):
            slow.lerp_(live, 1 - self.momentum)
        self.copy_buffers()

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """The live network's buffers, as running statistics."""
        for slow, live in zip(self.average.buffers(), self._live[0].buffers(), strict=True):
            slow.copy_(live)
