"""RECIPES, summary, renew recipes.json.

A recipe in a few lines for people: what `zoo info` says of a model that nobody has trained here yet.

Recipes by model name: `<method>-<backbone>-<data set>`. Functions make them; none is made before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from training.recipe import EnsembleRecipe, Recipe
from training.recipes import diva, group, reality, revisiting, sharing, small


def summary(recipe: Recipe | EnsembleRecipe) -> dict[str, Any]:
    """Facts by name: text, and `parameters` and `sources`. Of an ensemble: its first member's, and the members' names.

    parameters: of the network that embeds, without what only the loss learns.
    """
    if isinstance(recipe, EnsembleRecipe):
        members = list(recipe.members)
        joined = {"members": ", ".join(member.name for member in members)}
        return {**joined, **summary(members[0]), "parameters": sum(_parameters(member) for member in members)}
    return {
        **_objective(recipe),
        "sampler": f"{recipe.batch.sampler}{_arguments(recipe.batch.args)}: {recipe.batch.per_class} of a class, "
        f"{recipe.batch.size} a batch",
        "architecture": _architecture(recipe),
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in recipe.heads) or "none: pooled features",
        "input": f"{recipe.preprocessing.mode}, {recipe.preprocessing.resize} to {recipe.preprocessing.crop} pixels",
        "schedule": _schedule(recipe),
        "parameters": _parameters(recipe),
        "sources": list(recipe.sources),
    }


def _objective(recipe: Recipe) -> dict[str, str]:
    """What is trained by, each with its arguments; the method only where it is more than a loss."""
    what = recipe.objective
    parts = {
        "objective": ("" if what.method == "plain" and not what.method_args else what.method, what.method_args),
        "loss": (what.loss, what.loss_args),
        "miner": (what.miner, what.miner_args),
    }
    return {kind: f"{name}{_arguments(args)}" for kind, (name, args) in parts.items() if name}


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

    from zoo.models.network import create_trunk, feature_count

    with torch.device("meta"):
        trunk = create_trunk(architecture, channels, {key: literal_eval(text) for key, text in args})
    return sum(parameter.numel() for parameter in trunk.parameters()), feature_count(trunk)


RECIPES: dict[str, Callable[[], Recipe | EnsembleRecipe]] = {
    name: make for paper in (revisiting, sharing, diva, group, reality, small) for name, make in paper.recipes()
}

FEATURES = {"r50": 2048, "gn": 1024, "ibn": 1024, "d121": 1024, "d161": 2208, "d169": 1664, "d201": 1920}
"""Pooled features of the backbones, which are the embedding of a recipe without heads."""


@cache
def standard_recipe(name: str) -> Recipe | EnsembleRecipe:
    """Return the recipe or the ensemble of a name in `RECIPES`, without settings; it is built once."""
    return RECIPES[name]()


def catalogue() -> dict[str, dict[str, object]]:
    """What `zoo list` shows of each recipe: the content of `zoo/models/recipes.json`."""
    recipes = {name: make() for name, make in sorted(RECIPES.items())}
    names = {
        name: {"dim": embedding_dim(r), "method": r.method, "backbone": r.backbone.name, "dataset": r.data.dataset}
        for name, r in recipes.items()
    }
    return {name: {**names[name], **summary(recipe)} for name, recipe in recipes.items()}


def embedding_dim(recipe: Recipe | EnsembleRecipe) -> int:
    """The dimension of the embedding."""
    if isinstance(recipe, EnsembleRecipe):
        return sum(embedding_dim(member) for member in recipe.members)
    return recipe.dim or FEATURES.get(recipe.backbone.name) or int(recipe.backbone.args["widths"][-1])
