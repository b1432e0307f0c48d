"""Optimiser, schedule, frozen batch norm.

Batch norms of a trained backbone that stay as they are while the rest of it learns.

The recipe's optimiser over network and method, and how its learning rate goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from training.methods.base import Method
from training.recipe import Optimizer, Schedule
from training.registry import check_arguments
from zoo.errors import RecipeError, nearest

NORMS = ("none", "statistics", "all")


def freeze_norm(trunk: nn.Module, how: str) -> None:
    """Freeze every batch norm in `trunk`, for good: later calls of `train()` leave it as it is, copies as well.

    how: "all": running statistics, factors and offsets stay (Roth et al. 2020, Revisiting Training Strategies, the
    paper); "statistics": the statistics stay, factors and offsets learn (its code for ResNet-50); "none": nothing.
    A frozen batch norm normalises by its running statistics in training too.

    Raises `RecipeError` for another `how` and for a trunk that has no batch norm to freeze.
    """
    if how not in NORMS:
        raise RecipeError(f"batch norm is frozen by {', '.join(NORMS)}, not {how!r}.{nearest(how, NORMS)}")
    norms = [module for module in trunk.modules() if isinstance(module, _BatchNorm)]
    if how != "none" and not norms:
        raise RecipeError(f"{type(trunk).__name__} has no batch norm, so that none can be frozen; expected 'none'.")
    for norm in norms if how != "none" else ():
        _fix_statistics(norm)
        if how == "all":
            for parameter in norm.parameters(recurse=False):
                parameter.requires_grad_(False)


def _fix_statistics(norm: nn.Module) -> None:
    # A bound method is copied together with its module, which a lambda would not be.
    norm.train = MethodType(_train_but_for_itself, norm)  # type: ignore[method-assign]
    norm.train(norm.training)


def _train_but_for_itself(norm: nn.Module, mode: bool = True) -> nn.Module:
    """In the place of `norm.train`: what the module holds follows `mode`, itself stays in evaluation mode."""
    nn.Module.train(norm, mode)
    norm.training = False
    return norm


def create_optimizer(how: Optimizer, network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Network at the recipe's rate, what the method learns besides at `loss_lr`, or at rates of its own."""
    check_arguments(OPTIMIZERS, "optimizer", how.name, {})
    own = [{"params": r.parameters, "lr": r.lr, "weight_decay": r.weight_decay} for r in method.parameter_groups()]
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
