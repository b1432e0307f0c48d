"""Optimiser and learning-rate schedule of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from training.construction import check_name
from training.methods.base import Method
from training.recipe import OPTIMIZERS, Optimizer, Schedule

MOMENTUM = ("rmsprop", "sgd")
"""The optimisers that take the recipe's momentum."""


def create_optimizer(settings: Optimizer, network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Return the optimiser of network and method.

    The network learns at the recipe's rate, the method's own parameters at `loss_lr` or at rates it gives.

    Raises:
        RecipeError: If the optimiser is unknown.
    """
    check_name(OPTIMIZERS, "optimizer", settings.name)
    own = [{"params": r.parameters, "lr": r.lr, "weight_decay": r.weight_decay} for r in method.parameter_groups()]
    taken = {id(parameter) for group in own for parameter in group["params"]}  # type: ignore[attr-defined]
    trunk = [p for p in network.parameters() if id(p) not in taken]
    taken |= {id(parameter) for parameter in trunk}
    rest = [p for p in method.parameters() if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": trunk, "lr": settings.lr, "weight_decay": settings.weight_decay},
        {"params": rest, "lr": settings.loss_lr, "weight_decay": 0.0},
        *own,
    ]
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    momentum = {"momentum": settings.momentum} if settings.name in MOMENTUM else {}
    create: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[settings.name]
    return create([group for group in groups if group["params"]], lr=settings.lr, **momentum)


def learning_rate_factor(schedule: Schedule, update: int, updates_per_epoch: int) -> float:
    """Return the factor of the learning rate after `update` updates, counted over all epochs.

    one-cycle: linear from 1/25 to 1 over the share `warmup`, then half a cosine to 0 (Smith and Topin 2018,
    Super-convergence, with the cosine that became usual). multi-step: `gamma` to the number of milestones passed.
    """
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "multi-step":
        return schedule.gamma ** sum(update >= milestone * updates_per_epoch for milestone in schedule.milestones)
    done = update / max(1, updates_per_epoch * schedule.epochs)
    if done < schedule.warmup:
        return 0.04 + 0.96 * done / schedule.warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - schedule.warmup) / (1 - schedule.warmup))))
