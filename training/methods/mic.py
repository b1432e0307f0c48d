"""MIC (Roth, Brattoli and Ommer 2019, MIC: Mining Interclass Characteristics for Improved Metric Learning).

step on classes: L = loss(class head, classes) + decorrelation * D(class head, auxiliary head)
step on groups:  L = auxiliary_loss(auxiliary head, groups) + decorrelation * D(class head, auxiliary head)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.construction import construct
from training.functional import Decorrelation
from training.losses import LOSSES
from training.methods.base import (
    ExtractFeatures,
    Method,
    Miner,
    Minibatch,
    ParameterGroup,
    mined_tuples,
    objective_loss,
    require_heads,
    takes_tuples,
)
from training.methods.grouping import Grouping
from zoo.errors import RecipeError

ROUNDING = 1e-9
"""Tolerance of a product or quotient of whole numbers and a probability that should be a whole number."""


class MIC(Method):
    """A head "class" that learns the classes, and an auxiliary head that learns characteristics which classes share.

    The auxiliary head has the same width and is not published. It learns to separate groups of samples: clusters of the
    features standardised by class. Each step on the classes is followed by one on the groups with a probability, as in
    the published code. Which ones are, is random; their number in an epoch is the expected one, so that every epoch has
    as many steps. Their batches are drawn by class or by group.

    Args:
        heads: One head, "class".
        loss: The recipe's loss.
        features: Number of pooled features.
        dim: Dimension of both heads.
        labels: Classes of the training samples, int64 [n].
        seed: Seed of groups and steps.
        miner: The recipe's miner, also for the groups.
        groups: Number of groups; 30 on CUB, 150 on CARS, 50 on SOP.
        cluster_every: Epochs from one clustering to the next; 3 in the paper, always 4 in the published code.
        auxiliary_probability: 0.8 on CUB and CARS, 0.5 on SOP.
        auxiliary_loss: Loss of the groups; margin with beta 1.2 in the paper. It is separate from the recipe's loss,
            because there may be more groups than classes.
        auxiliary_loss_args: Its arguments.
        auxiliary_lr: Learning rate of the auxiliary head.
        auxiliary_weight_decay: Weight decay of the auxiliary head.
        decorrelation: Weight; 2500 on CUB, 500 on CARS, 250 on SOP.
        width: Width of the regressor of the decorrelation.
        adversary_lr: Its learning rate.
        adversary_weight_decay: Its weight decay.

    Raises:
        RecipeError: If the heads do not fit, a number is out of range, or the loss does not accept the miner's tuples.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        features: int,
        dim: int,
        labels: np.ndarray,
        seed: int,
        miner: Miner | None = None,
        groups: int = 30,
        cluster_every: int = 3,
        auxiliary_probability: float = 0.8,
        auxiliary_loss: str = "margin",
        auxiliary_loss_args: Mapping[str, Any] | None = None,
        auxiliary_lr: float = 1e-5,
        auxiliary_weight_decay: float = 4e-4,
        decorrelation: float = 2500.0,
        width: int = 512,
        adversary_lr: float = 1e-5,
        adversary_weight_decay: float = 1e-6,
    ) -> None:
        super().__init__()
        require_heads(heads, ["class"], "the method 'mic'")
        if not 0 <= auxiliary_probability <= 1:
            raise RecipeError(
                f"auxiliary_probability is {auxiliary_probability}; it must be from 0 to 1.", code="invalid-value"
            )
        rates = auxiliary_lr, auxiliary_weight_decay, adversary_lr, adversary_weight_decay
        if min(decorrelation, *rates) < 0:
            raise RecipeError(
                f"decorrelation is {decorrelation}, and rates and weight decays are {', '.join(map(str, rates))}; all "
                "must be 0 or more.",
                code="invalid-value",
            )
        self.heads, self.miner, self.seed = heads, miner, seed
        self.weight, self.probability = decorrelation, auxiliary_probability
        self.auxiliary = nn.Linear(features, dim)
        sizes = {"num_classes": groups, "embedding_size": dim}
        group_loss: nn.Module = construct(LOSSES, "loss", auxiliary_loss, auxiliary_loss_args or {}, sizes)
        mined = None if miner is None else mined_tuples(miner)
        if mined is not None and not takes_tuples(group_loss, mined):
            raise RecipeError(
                f"auxiliary_loss {auxiliary_loss!r} does not accept the {mined.__name__.lower()} of the "
                "recipe's miner; choose another loss.",
                code="conflicting-settings",
            )
        self.losses = nn.ModuleDict({"class": loss, "auxiliary": group_loss})
        self.grouping = Grouping(labels, groups, cluster_every, seed)
        self.decorrelation = Decorrelation(dim, dim, width)
        self.auxiliary_rate = (auxiliary_lr, auxiliary_weight_decay)
        self.adversary_rate = (adversary_lr, adversary_weight_decay)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the term of the batch's task, and `decorrelation`."""
        raw = {"class": self.heads["class"](batch.features), "auxiliary": self.auxiliary(batch.features)}
        labels = batch.labels if batch.task == "class" else self.grouping.groups[batch.samples]
        classes, groups = (normalize(embeddings, dim=1) for embeddings in raw.values())
        return {
            batch.task: objective_loss(self.losses[batch.task], self.miner, raw[batch.task], labels),
            "decorrelation": self.weight * self.decorrelation(classes, groups),
        }

    def steps(self, iterations: int) -> int:
        """Return a "class" step for each iteration, and the expected number of "auxiliary" steps, rounded down."""
        return iterations + math.floor(iterations * self.probability + ROUNDING)

    def plan(self, epoch: int, steps: int) -> list[str]:
        """Return "class" steps, of which a random share of `auxiliary_probability` has an "auxiliary" step after it."""
        classes = math.ceil(steps / (1 + self.probability) - ROUNDING)
        draw = np.random.default_rng((self.seed, epoch, steps))
        followed = set(draw.permutation(classes)[: steps - classes].tolist())
        return [task for i in range(classes) for task in (("class", "auxiliary") if i in followed else ("class",))]

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        return self.grouping.targets() if task == "auxiliary" else labels

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        self.grouping.start_epoch(epoch, extract_features)

    def epoch_facts(self) -> dict[str, float]:
        """Return the mean number of classes in a group."""
        return self.grouping.facts()

    def parameter_groups(self) -> list[ParameterGroup]:
        return [
            ParameterGroup(list(self.auxiliary.parameters()), *self.auxiliary_rate),
            ParameterGroup(list(self.decorrelation.parameters()), *self.adversary_rate),
        ]
