"""The recipe's optimiser over network and method, and how its learning rate goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from training.methods.base import Method
from training.recipe import Optimizer, Schedule
from training.tables import check


def create_optimizer(how: Optimizer, network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Network at the recipe's rate, what the method learns besides at `loss_lr`, or at rates of its own."""
    check(OPTIMIZERS, "optimizer", how.name, {})
    own = [{"params": r.parameters, "lr": r.lr, "weight_decay": r.weight_decay} for r in method.rates()]
    taken = {id(parameter) for group in own for parameter in group["params"]}  # type: ignore[attr-defined]
    trunk = [p for p in network.parameters() if id(p) not in taken]
    taken |= {id(parameter) for parameter in trunk}
    rest = [p for p in method.parameters() if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": trunk, "lr": how.lr, "weight_decay": how.weight_decay},
        {"params": rest, "lr": how.loss_lr, "weight_decay": 0.0},
        *own,
    ]
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return OPTIMIZERS[how.name]([group for group in groups if group["params"]], how)


def learning_rate_factor(schedule: Schedule, update: int, updates_per_epoch: int) -> float:
    """What the learning rate is multiplied with after `update` updates, counted over all epochs.

    one-cycle: linear from 1/25 to 1 over the share `warmup`, then half a cosine to 0 (Smith & Topin 2018,
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


def _sgd(groups: Any, how: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=how.lr, momentum=how.momentum)


def _rmsprop(groups: Any, how: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=how.lr, momentum=how.momentum)


def _adam(groups: Any, how: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=how.lr)


def _adamw(groups: Any, how: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=how.lr)


def _radam(groups: Any, how: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.RAdam(groups, lr=how.lr)


OPTIMIZERS: dict[str, Callable[[Any, Optimizer], torch.optim.Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "radam": _radam,
    "rmsprop": _rmsprop,
    "sgd": _sgd,
}
