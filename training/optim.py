"""Optimiser, learning-rate schedule and frozen batch norms of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from training.construction import check_name
from training.methods.base import Method
from training.recipe import NORMS, OPTIMIZERS, Optimizer, Schedule
from zoo.errors import RecipeError, nearest

MOMENTUM = ("rmsprop", "sgd")
"""The optimisers that take the recipe's momentum."""


def freeze_norm(trunk: nn.Module, mode: str) -> None:
    """Freeze every batch norm in `trunk`; later calls of `train()` and copying do not change that.

    A frozen batch norm normalises by its running statistics in training too.

    Args:
        trunk: The trunk.
        mode: "all" freezes running statistics, factors and offsets (Roth et al. 2020, Revisiting, the
            paper); "statistics" only the statistics (its code for ResNet-50); "none" nothing.

    Raises:
        RecipeError: If the mode is unknown, or the trunk has no batch norm to freeze.
    """
    if mode not in NORMS:
        raise RecipeError(
            f"freeze_norm must be {', '.join(NORMS)}, not {mode!r}.{nearest(mode, NORMS)}", code="unknown-name"
        )
    norms = [module for module in trunk.modules() if isinstance(module, _BatchNorm)]
    if mode != "none" and not norms:
        raise RecipeError(
            f"{type(trunk).__name__} has no batch norm to freeze; set backbone.freeze_norm=none.",
            code="unsupported-model",
        )
    for norm in norms if mode != "none" else ():
        freeze_statistics(norm)
        if mode == "all":
            for parameter in norm.parameters(recurse=False):
                parameter.requires_grad_(False)


def freeze_statistics(norm: nn.Module) -> None:
    """Keep a batch norm in evaluation mode; later calls of `train()` and copying do not change that."""
    # A bound method is copied together with its module, unlike a lambda.
    norm.train = MethodType(_train_children, norm)  # type: ignore[method-assign]
    norm.train(norm.training)


def _train_children(norm: nn.Module, mode: bool = True) -> nn.Module:
    """Replace `norm.train`: the modules inside follow `mode`, the norm itself stays in evaluation mode."""
    nn.Module.train(norm, mode)
    norm.training = False
    return norm


def create_optimizer(settings: Optimizer, network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Return the optimiser of network and method.

    The network learns at the recipe's rate, the method's own parameters at `loss_lr` with `loss_weight_decay`, or at
    rates and decays that the method gives.

    Raises:
        RecipeError: If the optimiser is unknown.
    """
    check_name(OPTIMIZERS, "optimizer", settings.name)
    own = [
        {
            "params": group.parameters,
            "lr": settings.lr * group.factor if group.lr is None else group.lr,
            "weight_decay": group.weight_decay,
        }
        for group in method.parameter_groups()
    ]
    taken = {id(parameter) for group in own for parameter in group["params"]}  # type: ignore[attr-defined]
    trunk = [p for p in network.parameters() if id(p) not in taken]
    taken |= {id(parameter) for parameter in trunk}
    rest = [p for p in method.parameters() if id(p) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": trunk, "lr": settings.lr, "weight_decay": settings.weight_decay},
        {"params": rest, "lr": settings.loss_lr, "weight_decay": settings.loss_weight_decay},
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
