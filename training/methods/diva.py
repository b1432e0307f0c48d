"""DiVA (Milbich, Roth et al. 2020, DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import Decorrelation
from training.methods.auxiliary import AUXILIARY, Auxiliary
from training.methods.base import ExtractFeatures, Method, Miner, Minibatch, ParameterGroup, objective_loss
from training.registry import construct
from zoo.errors import RecipeError, nearest

DISCRIMINATIVE = re.compile(r"discriminative(-\d+)?")


class DiVA(Method):
    """Several heads on one trunk, each with a task of its own, which the head's name says; decorrelated in pairs.

    "discriminative": the recipe's loss and miner. "shared", "intra", "dance": the paper's auxiliary tasks. "nce",
    "deepcluster", "rotation", "instance": what it compares "dance" with (its tables 2 to 4). "discriminative-2",
    "discriminative-3" and so on: an ensemble. Any of them beside "discriminative", or with rho 0 without it, as the
    separately trained models of the comparison are.

    The loss is sum of discriminative tasks + alpha * sum of auxiliary tasks + rho * sum of decorrelations, those of
    "discriminative" with each auxiliary head and of discriminative heads with one another. rho 0: none.
    Constants of the paper's supplement for ResNet-50: alpha 0.3, rho 1500 on CUB; 0.1, 100 on CARS; 0.2, 300 on SOP.
    The regressors of the decorrelation learn at `adversary_lr` with `adversary_weight_decay`. sum_over_dim: the paper's
    sum over a head's numbers in the place of the mean, which its rho fits (see `training.functional`).

    auxiliary: further arguments of auxiliary tasks by head, as {"dance": {"queue_batches": 70}}; see
    `training.methods.auxiliary`.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        create_loss: Callable[[int], nn.Module],
        trunk: nn.Module,
        classes: int,
        samples: int,
        batch_size: int,
        seed: int,
        miner: Miner | None = None,
        alpha: float = 0.3,
        rho: float = 1500.0,
        auxiliary: Mapping[str, Mapping[str, Any]] | None = None,
        adversary_lr: float = 1e-5,
        adversary_weight_decay: float = 1e-6,
        sum_over_dim: bool = False,
    ) -> None:
        super().__init__()
        arguments = auxiliary or {}
        _check(heads, arguments, alpha, rho)
        self.heads, self.miner, self.alpha, self.rho = heads, miner, alpha, rho
        self.adversary_lr, self.adversary_weight_decay = adversary_lr, adversary_weight_decay
        dims = {name: cast(nn.Linear, head).out_features for name, head in heads.items()}
        own = [name for name in heads if DISCRIMINATIVE.fullmatch(name)]
        offered = {"trunk": trunk, "create_loss": create_loss, "classes": classes, "samples": samples}
        offered |= {"batch_size": batch_size, "seed": seed}
        self.discriminative = nn.ModuleDict({name: create_loss(dims[name]) for name in own})
        self.auxiliary = nn.ModuleDict()
        for name in [name for name in heads if name not in own]:
            given = {**offered, "head": heads[name], "dim": dims[name]}
            self.auxiliary[name] = construct(AUXILIARY, "auxiliary task", name, arguments.get(name, {}), given)
        self.pairs = [*combinations(own, 2), *(("discriminative", name) for name in self.auxiliary)] if rho else []
        self.decorrelations = nn.ModuleList(
            [Decorrelation(dims[a], dims[b], sum_over_dim=sum_over_dim) for a, b in self.pairs]
        )

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """A term a head, by its name, weighted; and "decorrelation" where there are pairs."""
        raw = {name: head(batch.features) for name, head in self.heads.items()}
        terms = {
            name: objective_loss(loss, self.miner, raw[name], batch.labels)
            for name, loss in self.discriminative.items()
        }
        terms |= {name: self.alpha * task.loss(raw[name], batch) for name, task in self._tasks()}
        if self.pairs:
            terms["decorrelation"] = self._decorrelation({name: normalize(rows, dim=1) for name, rows in raw.items()})
        return terms

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        once = cache(observe)
        for _, task in self._tasks():
            task.start_epoch(epoch, once)

    def end_step(self, batch: Minibatch) -> None:
        for _, task in self._tasks():
            task.end_step(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        return [ParameterGroup(list(self.decorrelations.parameters()), self.adversary_lr, self.adversary_weight_decay)]

    def _tasks(self) -> list[tuple[str, Auxiliary]]:
        return cast(list[tuple[str, Auxiliary]], list(self.auxiliary.items()))

    def _decorrelation(self, unit: Mapping[str, Tensor]) -> Tensor:
        every = zip(self.pairs, self.decorrelations, strict=True)
        total: Tensor = sum(decorrelation(unit[a], unit[b]) for (a, b), decorrelation in every)
        return self.rho * total


def _check(heads: nn.ModuleDict, arguments: Mapping[str, Any], alpha: float, rho: float) -> None:
    """Raise `RecipeError` unless the heads are named after tasks, and arguments and weights fit."""
    if "discriminative" not in heads and (rho or not heads):
        raise RecipeError(
            f"the method 'diva' needs a head 'discriminative'; the heads are {', '.join(heads) or 'none'}. Without it "
            "nothing can be decorrelated: set rho to 0 to train auxiliary tasks alone."
        )
    for name in heads:
        if name not in AUXILIARY and not DISCRIMINATIVE.fullmatch(name):
            raise RecipeError(
                f"the method 'diva' has no task for a head {name!r}.{nearest(name, AUXILIARY)} Tasks: discriminative, "
                f"discriminative-2, ..., {', '.join(AUXILIARY)}."
            )
    strange = [name for name in arguments if name not in heads or name not in AUXILIARY]
    if strange:
        raise RecipeError(f"auxiliary={strange[0]!r} names no auxiliary head; the heads are {', '.join(heads)}.")
    if min(alpha, rho) < 0:
        raise RecipeError(f"alpha and rho must be 0 or more, not {alpha!r} and {rho!r}.")
