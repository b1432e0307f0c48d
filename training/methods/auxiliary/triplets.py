"""Two tasks that take the recipe's loss to other triplets (Milbich, Roth et al. 2020, DiVA)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.methods.auxiliary.task import Auxiliary
from training.methods.plain import Miner, objective
from training.methods.requirements import takes
from training.miners.distance_weighted import DistanceWeighted
from training.miners.inter_class import InterClass
from training.miners.intra_class import IntraClass
from training.minibatch import Minibatch
from training.tuples import Triplets
from zoo.errors import RecipeError

CreateLoss = Callable[[int], nn.Module]


class Shared(Auxiliary):
    """What classes have in common: anchor, positive and negative of three different classes.

    permuted_labels: the published code's triplets, mined by distance as if each batch's labels were permuted.
    """

    def __init__(self, create_loss: CreateLoss, dim: int, permuted_labels: bool = False) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "shared")
        self.miner: Miner = _as_if_permuted if permuted_labels else InterClass()

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        return objective(self.objective, self.miner, raw, batch.labels)


class Intra(Auxiliary):
    """What varies within a class: anchor, positive and negative are three different samples of one class.

    A sample that comes again in the batch, as of classes with too few of them, takes part once. Raises `RecipeError`
    for a batch in which no class has three.
    """

    def __init__(self, create_loss: CreateLoss, dim: int) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "intra")
        self.miner: Miner = IntraClass()

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        labels = _once(batch.labels, batch.samples)
        return objective(self.objective, lambda unit, _: self.miner(unit, labels), raw, batch.labels)


def _triplet_loss(create_loss: CreateLoss, dim: int, task: str) -> nn.Module:
    loss = create_loss(dim)
    if not takes(loss, Triplets):
        raise RecipeError(
            f"the task {task!r} trains the recipe's loss on triplets, and {type(loss).__name__} takes none; set "
            "objective.loss to one that does, as margin or triplet, or leave that head out."
        )
    return loss


def _as_if_permuted(embeddings: Tensor, labels: Tensor) -> Triplets:
    return DistanceWeighted()(embeddings, labels[torch.randperm(len(labels), device=labels.device)])


def _once(labels: Tensor, samples: Tensor) -> Tensor:
    """labels int64 [b]; where a sample comes again, a label below 0 that nothing else has."""
    ordered, order = samples.sort(stable=True)
    again = torch.zeros_like(labels, dtype=torch.bool)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    return torch.where(again, -1 - torch.arange(len(labels), device=labels.device), labels)
