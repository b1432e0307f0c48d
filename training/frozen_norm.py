"""Batch norms of a trained backbone that stay as they are while the rest of it learns."""

from __future__ import annotations

from types import MethodType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import RecipeError, nearest

FROZEN = ("none", "statistics", "all")


def freeze_norm(trunk: nn.Module, how: str) -> None:
    """Freeze every batch norm in `trunk`, for good: later calls of `train()` leave it as it is, copies as well.

    how: "all": running statistics, factors and offsets stay (Roth et al. 2020, Revisiting Training Strategies, the
    paper); "statistics": the statistics stay, factors and offsets learn (its code for ResNet-50); "none": nothing.
    A frozen batch norm normalises by its running statistics in training too.

    Raises `RecipeError` for another `how` and for a trunk that has no batch norm to freeze.
    """
    if how not in FROZEN:
        raise RecipeError(f"batch norm is frozen by {', '.join(FROZEN)}, not {how!r}.{nearest(how, FROZEN)}")
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
