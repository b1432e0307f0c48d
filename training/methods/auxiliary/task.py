"""What an auxiliary task is to the methods that train several: a loss of its own head, and hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from training.methods.method import Observe
from training.minibatch import Minibatch


class Auxiliary(nn.Module, ABC):
    """Owns what its task learns and keeps beside the head; all of it in parameters and buffers.

    Its constructor is given what it asks for by name: head, nn.Linear f -> dim, and trunk, both live and not to be
    registered here; dim; create_loss(dim), an instance of the recipe's loss; classes and samples, how many;
    batch_size; seed.
    """

    @abstractmethod
    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Scalar loss of the head's embeddings [b, dim] of the batch, not normalised."""

    def start_epoch(self, epoch: int, observe: Observe) -> None:
        """Called before each epoch's first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Called after each step."""
