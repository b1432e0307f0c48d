"""Sharing Matters (Milbich, Roth et al. 2020, Sharing Matters for Generalization in Deep Metric Learning, section 3).

step on phi:  L = loss(phi, triplets of classes) + gamma * D(phi, phi*)
step on phi*: L = shared loss(phi*, triplets across classes) + gamma * D(phi, phi*)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.construction import construct
from training.functional import Decorrelation, Triplets
from training.losses import LOSSES
from training.methods.base import (
    ExtractFeatures,
    Method,
    Miner,
    Minibatch,
    ParameterGroup,
    objective_loss,
    require_heads,
    takes_tuples,
)
from training.methods.grouping import SharedTriplets
from zoo.errors import RecipeError

BOTH = ("discriminative", "shared")
ARMS = {
    "discriminative": ("discriminative",),
    "shared": ("shared",),
    "joint": ("joint",),
    "separate": BOTH,
    "decorrelated": BOTH,
}
"""The arms of the ablation, and the heads of each."""


class Sharing(Method):
    """An encoder phi on triplets of classes and an encoder phi* on triplets across classes, on the same features.

    The two tasks alternate, each with its own batches: an iteration has one batch and one update of each (algorithm 1).
    An arm of one task takes both batches for it, so that all arms have as many updates and images.

    phi is the head "discriminative" and has the recipe's loss and miner. phi* is the head "shared"; values that its
    loss learns per class are those of the anchor's class.

    Args:
        heads: The heads of the arm.
        create_loss: Function of a dimension that returns the recipe's loss.
        labels: Classes of the training samples, int64 [n].
        classes: Number of training classes.
        seed: Seed of the groups.
        miner: The recipe's miner.
        arm: "decorrelated", the method (section 3.3); "separate", both heads without decorrelation; "joint", both tasks
            on one head "joint"; "discriminative" or "shared", one task alone.
        gamma: Weight of the decorrelation; 500 to 2000 by cross validation in the paper, 500 on CARS.
        triplets: Set-up of the triplets of phi*, see `SharedTriplets`.
        negatives: Their negatives. The default is distance-weighted, for unconstrained triplets random (table 8a), and
            for a loss of several negatives, such as npair, all of the batch (section 4: "multiple random negatives").
        positives: Their positives, see `SharedTriplets`; the default is distance-weighted (algorithm 1).
        shared_loss: Loss of phi*; the default is the recipe's, or if that does not accept triplets, such as proxynca,
            the triplet loss of squared distances with semihard negatives.
        shared_loss_args: Its arguments.
        groups: Number of groups of grouped triplets, as in MIC on CUB.
        cluster_every: Epochs from one clustering to the next, as in MIC on CUB.
        width: Width of the regressor of the decorrelation, as in MIC.
        adversary_lr: Its learning rate.
        adversary_weight_decay: Its weight decay.

    Raises:
        RecipeError: If the arm is unknown, the heads do not fit, a number is out of range, or the loss does not accept
            triplets.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        create_loss: Callable[[int], nn.Module],
        labels: np.ndarray,
        classes: int,
        seed: int,
        miner: Miner | None = None,
        arm: str = "decorrelated",
        gamma: float = 500.0,
        triplets: str = "inter-class",
        negatives: str | None = None,
        positives: str | None = None,
        shared_loss: str | None = None,
        shared_loss_args: Mapping[str, Any] | None = None,
        groups: int = 30,
        cluster_every: int = 3,
        width: int = 512,
        adversary_lr: float = 1e-5,
        adversary_weight_decay: float = 1e-6,
    ) -> None:
        super().__init__()
        if arm not in ARMS:
            raise RecipeError(f"arm is {arm!r}; choose one of {', '.join(ARMS)}.", code="unknown-name")
        if min(gamma, adversary_lr, adversary_weight_decay) < 0:
            raise RecipeError(
                f"gamma is {gamma}, adversary_lr {adversary_lr} and adversary_weight_decay {adversary_weight_decay}; "
                "all must be 0 or more.",
                code="invalid-value",
            )
        require_heads(heads, ARMS[arm], f"the method 'sharing' with the arm {arm!r}")
        self.heads, self.miner, self.gamma = heads, miner, gamma
        self.tasks = (arm,) if arm in BOTH else BOTH
        self.head = {task: "joint" if arm == "joint" else task for task in self.tasks}
        dims = {task: cast(nn.Linear, heads[self.head[task]]).out_features for task in self.tasks}
        self.losses = nn.ModuleDict()
        if "discriminative" in self.tasks:
            self.losses["discriminative"] = create_loss(dims["discriminative"])
        if "shared" in self.tasks:
            sizes = {"num_classes": classes, "embedding_size": dims["shared"]}
            loss, usual = _shared_loss(create_loss, shared_loss, shared_loss_args, sizes)
            self.losses["shared"] = loss
            if triplets == "unconstrained" and usual == "distance-weighted":
                usual = "random"
            drawn = negatives or usual
            self.triplets = SharedTriplets(triplets, drawn, labels, groups, cluster_every, seed, positives)
        self.decorrelation: Decorrelation | None = None
        if arm == "decorrelated":
            self.decorrelation = Decorrelation(dims["discriminative"], dims["shared"], width)
        self.adversary = (adversary_lr, adversary_weight_decay)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the term of the batch's task, and `decorrelation` in the arm "decorrelated"."""
        task = batch.task
        raw = {name: head(batch.features) for name, head in self.heads.items()}
        miner = self.miner if task == "discriminative" else self.triplets.miner(batch)
        terms = {task: objective_loss(self.losses[task], miner, raw[self.head[task]], batch.labels)}
        if self.decorrelation is not None:
            phi, shared = (normalize(raw[name], dim=1) for name in BOTH)
            terms["decorrelation"] = self.gamma * self.decorrelation(phi, shared)
        return terms

    def steps(self, iterations: int) -> int:
        """Return two steps for each iteration, in every arm (algorithm 1)."""
        return len(BOTH) * iterations

    def plan(self, epoch: int, steps: int) -> list[str]:
        """Return the tasks in turn, continued from epoch to epoch."""
        return [self.tasks[step % len(self.tasks)] for step in range(epoch * steps, (epoch + 1) * steps)]

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        return self.triplets.targets(labels) if task == "shared" else labels

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        if "shared" in self.tasks:
            self.triplets.start_epoch(epoch, extract_features)

    def epoch_facts(self) -> dict[str, float]:
        """Return the mean number of classes in a group, if triplets are drawn by groups."""
        grouping = self.triplets.grouping if "shared" in self.tasks else None
        return {} if grouping is None else grouping.facts()

    def parameter_groups(self) -> list[ParameterGroup]:
        return (
            []
            if self.decorrelation is None
            else [ParameterGroup(list(self.decorrelation.parameters()), *self.adversary)]
        )


def _shared_loss(
    create_loss: Callable[[int], nn.Module], name: str | None, args: Mapping[str, Any] | None, sizes: dict[str, int]
) -> tuple[nn.Module, str]:
    """Return the loss of phi* and its default negatives."""
    if name is None:
        if args is not None:
            raise RecipeError("shared_loss_args need a shared_loss; name it.", code="option-without-effect")
        loss = create_loss(sizes["embedding_size"])
        if takes_tuples(loss, Triplets):
            return loss, _usual_negatives(loss)
        return construct(LOSSES, "loss", "triplet", {"squared": True}, sizes), "semihard"
    loss = construct(LOSSES, "loss", name, args or {}, sizes)
    if not takes_tuples(loss, Triplets):
        raise RecipeError(
            f"shared_loss {name!r} does not accept triplets; choose a loss that does, such as margin or triplet.",
            code="conflicting-settings",
        )
    return loss, _usual_negatives(loss)


def _usual_negatives(loss: nn.Module) -> str:
    return "all" if getattr(loss, "several_negatives", False) else "distance-weighted"
