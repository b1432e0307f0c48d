"""What a training method is to the loop: named loss terms of a batch, and hooks that do nothing unless overridden."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from training.minibatch import Minibatch

Observe = Callable[[], Tensor]
"""Pooled features float32 [n, f] of all training samples, not augmented, by the network as it is; without gradient."""


@dataclass(frozen=True)
class Rates:
    """Parameters that learn at a rate and with a weight decay of their own."""

    parameters: list[nn.Parameter]
    lr: float
    weight_decay: float


class Method(nn.Module, ABC):
    """Owns the heads, which are published with the trunk, and whatever else is learnt or kept beside it.

    All state lies in parameters and buffers, so that a checkpoint holds it. A method is made by `create_method`, which
    gives its constructor what it asks for by name, beside the recipe's `objective.method_args`:
    heads (nn.ModuleDict of linear maps f -> dim); loss and miner, the recipe's; create_loss(dim), another instance of
    the recipe's loss; trunk; features (f); dim (of all heads together); classes and samples, how many; labels,
    int64 [samples]; batch_size; seed.
    """

    heads: nn.ModuleDict

    @abstractmethod
    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Named scalar terms whose sum is the loss."""

    def plan(self, epoch: int, steps: int) -> list[str]:
        """The task that each step of the epoch trains, as its minibatch will say. A function of its arguments alone."""
        return ["main"] * steps

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        """The labels int64 [n] by which the batches of a task are drawn; `Minibatch.labels` are always the classes."""
        return labels

    def start_epoch(self, epoch: int, observe: Observe) -> None:
        """Called before each epoch's first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Called after each step, when the weights were updated (with accumulated gradients: at every batch)."""

    def rates(self) -> list[Rates]:
        """Parameters that do not learn at the recipe's `optimizer.loss_lr`, as a method's own do by default."""
        return []
