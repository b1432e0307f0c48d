"""A recipe in a few lines for people: what `zoo info` says of a model that nobody has trained here yet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from training.recipe import Ensemble, Recipe


def summary(recipe: Recipe | Ensemble) -> dict[str, Any]:
    """Facts by name: text, and `parameters` and `sources`. Of an ensemble: its first member's, and the members' names.

    parameters: of the network that embeds, without what only the loss learns.
    """
    if isinstance(recipe, Ensemble):
        members = list(recipe.members)
        joined = {"members": ", ".join(member.name for member in members)}
        return {**joined, **summary(members[0]), "parameters": sum(_parameters(member) for member in members)}
    return {
        "objective": _objective(recipe),
        "architecture": _architecture(recipe),
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in recipe.heads) or "none: pooled features",
        "input": f"{recipe.preprocessing.mode}, {recipe.preprocessing.resize} to {recipe.preprocessing.crop} pixels",
        "batch": f"{recipe.batch.size} by {recipe.batch.sampler}, {recipe.batch.per_class} of a class",
        "schedule": _schedule(recipe),
        "parameters": _parameters(recipe),
        "sources": list(recipe.sources),
    }


def _objective(recipe: Recipe) -> str:
    what = recipe.objective
    parts = {"method": what.method, "loss": what.loss, "miner": what.miner}
    args = {"method": what.method_args, "loss": what.loss_args, "miner": what.miner_args}
    named = [f"{kind} {name}{_arguments(args[kind])}" for kind, name in parts.items() if name and name != "plain"]
    return ", ".join(named)


def _arguments(args: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{key} {value}' for key, value in args.items())})" if args else ""


def _architecture(recipe: Recipe) -> str:
    backbone = recipe.backbone
    starts: dict[bool | str, str] = {True: "public weights", False: "random weights"}
    start = starts.get(backbone.pretrained, str(backbone.pretrained))
    norm = {"all": ", batch norm frozen", "statistics": ", batch norm's statistics frozen"}.get(backbone.freeze_norm)
    return f"{backbone.architecture} from {start}{norm or ''}"


def _schedule(recipe: Recipe) -> str:
    how, optimizer = recipe.schedule, recipe.optimizer
    steps = f" of {how.steps} steps" if how.steps else ""
    at = f" at {', '.join(map(str, how.milestones))} by {how.gamma}" if how.milestones else ""
    rate = f"{optimizer.name} at {optimizer.lr}, weight decay {optimizer.weight_decay}"
    return f"{how.epochs} epochs{steps}, {rate}, {how.name} rate{at}, {recipe.precision}"


def _parameters(recipe: Recipe) -> int:
    args = tuple(sorted((key, repr(value)) for key, value in recipe.backbone.args.items()))
    trunk, features = _trunk(recipe.backbone.architecture, args, recipe.preprocessing.channels)
    return trunk + sum((features + 1) * head.dim for head in recipe.heads)


@cache
def _trunk(architecture: str, args: tuple[tuple[str, str], ...], channels: int) -> tuple[int, int]:
    """The trunk's parameters and its pooled features, without memory for its weights."""
    from ast import literal_eval

    import torch

    from zoo.network import create_trunk, feature_count

    with torch.device("meta"):
        trunk = create_trunk(architecture, channels, {key: literal_eval(text) for key, text in args})
    return sum(parameter.numel() for parameter in trunk.parameters()), feature_count(trunk)
