"""Parts of a recipe's run: method, loss, miner, sampler, optimiser, learning-rate schedule and frozen batch norms."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from training.functional import check_labels
from training.losses import LOSSES
from training.methods import METHODS
from training.methods.base import Method, accepted_tuples, mined_tuples
from training.miners import create_miner
from training.recipe import NORMS, Objective, Optimizer, Recipe, Schedule
from training.registry import check_arguments, construct
from training.samplers import SAMPLERS, Sampler
from zoo.errors import RecipeError, nearest

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
MOMENTUM = ("rmsprop", "sgd")
"""The optimisers that take the recipe's momentum."""


@dataclass(frozen=True)
class MethodContext:
    """Facts of a run that a method may need.

    Attributes:
        trunk: The trunk.
        heads: The heads by name.
        features: The number of the trunk's features.
        labels: int64 [samples], 0 to classes - 1.
        classes: The number of classes.
        batch_size: Samples per batch.
        seed: The seed of the run.
    """

    trunk: nn.Module
    heads: nn.ModuleDict
    features: int
    labels: np.ndarray
    classes: int
    batch_size: int = 112
    seed: int = 0

    def __post_init__(self) -> None:
        check_labels(torch.from_numpy(self.labels), self.classes)


def create_method(objective: Objective, context: MethodContext) -> Method:
    """Return the objective's method with its loss and miner.

    Raises:
        RecipeError: If a name or an argument is unknown, or loss, miner and method do not fit together.
    """
    dim = sum(cast(nn.Linear, head).out_features for head in context.heads.values()) or context.features
    makers: dict[str, Callable[[], Any]] = {
        "loss": lambda: _loss(objective, context, dim),
        "create_loss": lambda: lambda dim: _loss(objective, context, dim),
        "miner": lambda: _miner(objective),
    }
    offered = {**vars(context), "samples": len(context.labels), "dim": dim}
    if objective.method in METHODS:
        wanted = inspect.signature(METHODS[objective.method]).parameters
        _check_used(objective, set(wanted))
        offered |= {name: create() for name, create in makers.items() if name in wanted}
    method: Method = construct(METHODS, "method", objective.method, objective.method_args, offered)
    return method


def _loss(objective: Objective, context: MethodContext, dim: int) -> nn.Module:
    if objective.loss is None:
        raise RecipeError(f"the method {objective.method!r} needs a loss: set objective.loss.", code="no-loss")
    sizes = {"classes": context.classes, "dim": dim}
    loss: nn.Module = construct(LOSSES, "loss", objective.loss, objective.loss_args, sizes)
    return loss


def _miner(objective: Objective) -> Any:
    if objective.miner is None:
        return None
    miner = create_miner(objective.miner, objective.miner_args)
    if objective.loss in LOSSES:
        _check_tuples(objective, LOSSES[objective.loss], miner)
    return miner


def _check_used(objective: Objective, wanted: set[str]) -> None:
    """Check that the method uses the loss and the miner: nothing is dropped in silence."""
    if objective.loss is not None and not wanted & {"loss", "create_loss"}:
        raise RecipeError(
            f"the method {objective.method!r} has its own loss; leave objective.loss out.", code="unused-loss"
        )
    for part in ("loss", "miner"):
        if getattr(objective, part) is None and getattr(objective, f"{part}_args"):
            raise RecipeError(
                f"objective.{part}_args are set, but no objective.{part} that takes them.", code="unused-arguments"
            )
    if objective.miner is not None and "miner" not in wanted:
        raise RecipeError(
            f"the method {objective.method!r} does not take a miner: set objective.miner=none.", code="unused-miner"
        )


def _check_tuples(objective: Objective, loss: type[nn.Module], miner: Any) -> None:
    """Check that the loss takes the miner's kind of tuples, by their signatures."""
    given, taken = mined_tuples(miner), accepted_tuples(loss)
    if given not in taken:
        named = " or ".join(kind.__name__.lower() for kind in taken)
        advice = f"{named}: choose another miner" if named else "no tuples: set objective.miner=none"
        raise RecipeError(
            f"miner {objective.miner!r} gives {given.__name__.lower()}, but loss {objective.loss!r} takes {advice}.",
            code="miner-and-loss",
        )


def create_sampler(recipe: Recipe, labels: np.ndarray, stream: int = 0) -> Sampler:
    """Return the recipe's sampler.

    Args:
        recipe: The recipe.
        labels: The labels it draws by, int64 [n].
        stream: Samplers of different streams draw independently.

    Raises:
        RecipeError: If the labels cannot give such batches, or the sampler needs a head that the recipe lacks.
    """
    batch = recipe.batch
    seed = recipe.seed if stream == 0 else int(np.random.SeedSequence((recipe.seed, stream)).generate_state(1)[0])
    offered = {"labels": labels, "size": batch.size, "per_class": batch.per_class, "seed": seed}
    sampler: Sampler = construct(SAMPLERS, "sampler", batch.sampler, batch.args, {**offered, "dim": recipe.dim})
    if hasattr(sampler, "memory") and not recipe.dim:
        raise RecipeError(
            f"the sampler {batch.sampler!r} chooses by embeddings: the recipe needs a head.", code="no-heads"
        )
    return sampler


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
            f"freeze_norm must be {', '.join(NORMS)}, not {mode!r}.{nearest(mode, NORMS)}", code="unknown-freeze-norm"
        )
    norms = [module for module in trunk.modules() if isinstance(module, _BatchNorm)]
    if mode != "none" and not norms:
        raise RecipeError(
            f"{type(trunk).__name__} has no batch norm to freeze; set backbone.freeze_norm=none.", code="no-batch-norm"
        )
    for norm in norms if mode != "none" else ():
        # A bound method is copied together with its module, unlike a lambda.
        norm.train = MethodType(_train_children, norm)  # type: ignore[method-assign]
        norm.train(norm.training)
        if mode == "all":
            for parameter in norm.parameters(recurse=False):
                parameter.requires_grad_(False)


def _train_children(norm: nn.Module, mode: bool = True) -> nn.Module:
    """Replace `norm.train`: the modules inside follow `mode`, the norm itself stays in evaluation mode."""
    nn.Module.train(norm, mode)
    norm.training = False
    return norm


def create_optimizer(settings: Optimizer, network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Return the optimiser of network and method.

    The network learns at the recipe's rate, the method's own parameters at `loss_lr` or at rates it gives.

    Raises:
        RecipeError: If the optimiser is unknown.
    """
    check_arguments(OPTIMIZERS, "optimizer", settings.name, {})
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
