"""DiVA (Milbich, Roth et al. 2020, DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning, section 3).

L = sum of discriminative tasks + alpha * sum of auxiliary tasks + rho * sum of decorrelations
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import combinations
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.construction import construct
from training.functional import Decorrelation
from training.methods import AUXILIARY
from training.methods.auxiliary import Auxiliary
from training.methods.base import ExtractFeatures, Method, Miner, Minibatch, ParameterGroup, objective_loss
from zoo.errors import RecipeError, nearest

DISCRIMINATIVE = re.compile(r"discriminative(-\d+)?")


class DiVA(Method):
    """Several heads on one trunk, each with the task that its name says, decorrelated in pairs.

    Heads: "discriminative" has the recipe's loss and miner. "shared", "intra" and "dance" are the paper's auxiliary
    tasks; "nce", "deepcluster", "rotation" and "instance" are those that it compares "dance" with (figure 4).
    "discriminative-2", "discriminative-3" and so on make an ensemble. With rho 0 "discriminative" may be absent, as in
    the separately trained models of the comparison. Decorrelated are "discriminative" with each auxiliary head, and
    discriminative heads with one another.

    Args:
        heads: Heads named after tasks.
        create_loss: Function of a dimension that returns the recipe's loss.
        trunk: The trunk.
        classes: Number of training classes.
        samples: Number of training samples.
        batch_size: Samples per batch.
        seed: Seed of the auxiliary tasks.
        miner: The recipe's miner.
        alpha: Weight of the auxiliary tasks; for ResNet-50 0.3 on CUB, 0.1 on CARS, 0.2 on SOP (table 1).
        rho: Weight of the decorrelations, 0 for none; for ResNet-50 1500 on CUB, 100 on CARS, 300 on SOP (table 1).
        auxiliary: More arguments of auxiliary tasks by head, such as {"dance": {"queue_batches": 70}}.
        adversary_lr: Learning rate of the regressors of the decorrelations.
        adversary_weight_decay: Their weight decay.
        sum_over_dim: Use the paper's sum over a head's numbers instead of the mean of the published code. Table 1's
            rho fits the mean: the code's runs have such values, and the sum is as many times larger as a head has
            numbers.

    Raises:
        RecipeError: If a head has no task or the arguments of another head, or a number is out of range.
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
        discriminative = [name for name in heads if DISCRIMINATIVE.fullmatch(name)]
        offered = {"trunk": trunk, "create_loss": create_loss, "classes": classes, "samples": samples}
        offered |= {"batch_size": batch_size, "seed": seed}
        self.discriminative = nn.ModuleDict({name: create_loss(dims[name]) for name in discriminative})
        self.auxiliary = nn.ModuleDict()
        for name in [name for name in heads if name not in discriminative]:
            given = {**offered, "head": heads[name], "dim": dims[name]}
            self.auxiliary[name] = construct(AUXILIARY, "auxiliary task", name, arguments.get(name, {}), given)
        pairs = [*combinations(discriminative, 2), *(("discriminative", name) for name in self.auxiliary)]
        self.pairs = pairs if rho else []
        self.decorrelations = nn.ModuleList(
            [Decorrelation(dims[a], dims[b], sum_over_dim=sum_over_dim) for a, b in self.pairs]
        )

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the term of each task by its head's name, and `decorrelation`."""
        raw = {name: head(batch.features) for name, head in self.heads.items()}
        terms = {
            name: objective_loss(loss, self.miner, raw[name], batch.labels)
            for name, loss in self.discriminative.items()
        }
        terms |= {name: self.alpha * task.loss(raw[name], batch) for name, task in self._tasks()}
        if self.pairs:
            terms["decorrelation"] = self._decorrelation({name: normalize(rows, dim=1) for name, rows in raw.items()})
        return terms

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        extract_once = cache(extract_features)
        for _, task in self._tasks():
            task.start_epoch(epoch, extract_once)

    def end_step(self, batch: Minibatch) -> None:
        for _, task in self._tasks():
            task.end_step(batch)

    def parameter_groups(self) -> list[ParameterGroup]:
        return [ParameterGroup(list(self.decorrelations.parameters()), self.adversary_lr, self.adversary_weight_decay)]

    def _tasks(self) -> list[tuple[str, Auxiliary]]:
        return cast(list[tuple[str, Auxiliary]], list(self.auxiliary.items()))

    def _decorrelation(self, unit: Mapping[str, Tensor]) -> Tensor:
        pairs = zip(self.pairs, self.decorrelations, strict=True)
        total: Tensor = sum(decorrelation(unit[a], unit[b]) for (a, b), decorrelation in pairs)
        return self.rho * total


def _check(heads: nn.ModuleDict, arguments: Mapping[str, Any], alpha: float, rho: float) -> None:
    """Raise `RecipeError` unless the heads are named after tasks and the arguments and weights fit."""
    if "discriminative" not in heads and (rho or not heads):
        raise RecipeError(
            f"the method 'diva' needs a head 'discriminative'; the heads are {', '.join(heads) or 'none'}. Set rho to "
            "0 to train auxiliary tasks alone: without that head nothing can be decorrelated.",
            code="conflicting-settings",
        )
    for name in heads:
        if name not in AUXILIARY and not DISCRIMINATIVE.fullmatch(name):
            raise RecipeError(
                f"the method 'diva' has no task for a head {name!r}.{nearest(name, AUXILIARY)} Tasks: discriminative, "
                f"discriminative-2, ..., {', '.join(AUXILIARY)}.",
                code="unknown-name",
            )
    for name in arguments:
        if name not in heads or name not in AUXILIARY:
            raise RecipeError(
                f"the argument auxiliary names {name!r}, which is not an auxiliary head; the heads are "
                f"{', '.join(heads)}.",
                code="unknown-name",
            )
    if min(alpha, rho) < 0:
        raise RecipeError(f"alpha is {alpha!r} and rho is {rho!r}; both must be 0 or more.", code="invalid-value")
