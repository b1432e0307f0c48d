"""MIC: mining interclass characteristics (Roth, Brattoli and Ommer 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import normalize

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
from training.registry import construct
from zoo.errors import RecipeError


class MIC(Method):
    """A head "class" on the classes, and beside it one that learns what varies within them, so that the first need not.

    The auxiliary head, as wide as the other and not published, learns to tell groups of samples: clusters of the
    features standardised by class, renewed in every `cluster_every`th epoch (3; the published code: 4, whatever it
    says). Each step on the classes is followed by one on the groups with `auxiliary_probability`, as in the published
    code; both kinds count as steps of the epoch. Each has its own batches, drawn by class or by group, and the recipe's
    miner; both decorrelate the two embeddings, with the weight `decorrelation`.

    groups, decorrelation and auxiliary_probability are 30, 2500 and 0.8 on CUB; 150, 500, 0.8 on CARS; 50, 250, 0.5
    on SOP. The groups have a loss of their own, for there may be more of them than classes: by default margin with
    beta 1.2, as in the paper. auxiliary_lr and auxiliary_weight_decay are of the auxiliary head, as of the network.
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
            raise RecipeError(f"auxiliary_probability lies in 0..1, not at {auxiliary_probability}.")
        if min(decorrelation, auxiliary_lr, auxiliary_weight_decay, adversary_lr, adversary_weight_decay) < 0:
            raise RecipeError("the weight decorrelation, learning rates and weight decays are 0 or more.")
        self.heads, self.miner, self.seed = heads, miner, seed
        self.weight, self.probability = decorrelation, auxiliary_probability
        self.auxiliary = nn.Linear(features, dim)
        sizes = {"classes": groups, "dim": dim}
        own: nn.Module = construct(LOSSES, "loss", auxiliary_loss, auxiliary_loss_args or {}, sizes)
        if miner is not None and not takes_tuples(own, mined_tuples(miner)):
            raise RecipeError(f"auxiliary_loss {auxiliary_loss!r} does not take what the recipe's miner finds.")
        self.losses = nn.ModuleDict({"class": loss, "auxiliary": own})
        self.grouping = Grouping(labels, groups, cluster_every, seed)
        self.decorrelation = Decorrelation(dim, dim, width)
        self.auxiliary_rate = (auxiliary_lr, auxiliary_weight_decay)
        self.adversary_rate = (adversary_lr, adversary_weight_decay)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = {"class": self.heads["class"](batch.features), "auxiliary": self.auxiliary(batch.features)}
        labels = batch.labels if batch.task == "class" else self.grouping.groups[batch.samples]
        classes, groups = (normalize(embeddings, dim=1) for embeddings in raw.values())
        return {
            batch.task: objective_loss(self.losses[batch.task], self.miner, raw[batch.task], labels),
            "decorrelation": self.weight * self.decorrelation(classes, groups),
        }

    def plan(self, epoch: int, steps: int) -> list[str]:
        draw = np.random.default_rng((self.seed, epoch, steps))
        tasks: list[str] = []
        while len(tasks) < steps:
            tasks += ["class", "auxiliary"] if draw.random() < self.probability else ["class"]
        return tasks[:steps]

    def targets(self, task: str, labels: np.ndarray) -> np.ndarray:
        return self.grouping.targets() if task == "auxiliary" else labels

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        self.grouping.start_epoch(epoch, observe)

    def parameter_groups(self) -> list[ParameterGroup]:
        return [
            ParameterGroup(list(self.auxiliary.parameters()), *self.auxiliary_rate),
            ParameterGroup(list(self.decorrelation.parameters()), *self.adversary_rate),
        ]
