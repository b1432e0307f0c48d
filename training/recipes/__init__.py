"""Recipes by model name, `<method>-<backbone>-<data set>`, and what `zoo list` and `zoo info` show of them.

Functions make the recipes; none is made before it is used, and the module of a paper is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from training.recipe import Backbone, EnsembleRecipe, Objective, Optimizer, Recipe, Schedule
from training.recipes.common import trunk_size

Maker = Callable[[], Recipe | EnsembleRecipe]

MODULES = ("revisiting", "sharing", "diva", "group", "reality", "hyp_vit", "photos", "small")
"""Modules of recipes in the order of listing. A new module is one file and its name here."""


def summary(recipe: Recipe | EnsembleRecipe) -> dict[str, Any]:
    """Return facts about a recipe for `zoo info`: texts by name, `parameters` and `sources`.

    `parameters` counts the network that embeds, without state of the loss. For an ensemble the facts are those of its
    first member, with the names of all members and the sum of their parameters.
    """
    if isinstance(recipe, EnsembleRecipe):
        members = list(recipe.members)
        joined = {"members": ", ".join(member.name for member in members)}
        return {**joined, **summary(members[0]), "parameters": sum(_parameters(member) for member in members)}
    return {
        **_objective(recipe.objective),
        "sampler": f"{recipe.batch.sampler}{_arguments(recipe.batch.args)}: {recipe.batch.per_class} of a class, "
        f"{recipe.batch.size} a batch",
        "architecture": _architecture(recipe.backbone),
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in recipe.heads) or "none: pooled features",
        "input": f"{recipe.preprocessing.mode}, {'squeezed to ' if recipe.preprocessing.squeeze else ''}"
        f"{recipe.preprocessing.resize} to {recipe.preprocessing.crop} pixels",
        "schedule": f"{_schedule(recipe.schedule, recipe.optimizer)}, {recipe.precision}",
        "parameters": _parameters(recipe),
        "sources": list(recipe.sources),
    }


def _objective(objective: Objective) -> dict[str, str]:
    """Return method, loss and miner with their arguments; the method only if it is more than a loss."""
    only_loss = objective.method == "plain" and not objective.method_args
    parts = {
        "objective": ("" if only_loss else objective.method, objective.method_args),
        "loss": (objective.loss, objective.loss_args),
        "miner": (objective.miner, objective.miner_args),
    }
    return {kind: f"{name}{_arguments(args)}" for kind, (name, args) in parts.items() if name}


def _arguments(args: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{key} {value}' for key, value in args.items())})" if args else ""


def _architecture(backbone: Backbone) -> str:
    starts: dict[bool | str, str] = {True: "public weights", False: "random weights"}
    start = starts.get(backbone.pretrained, str(backbone.pretrained))
    norm = {"all": ", batch norm frozen", "statistics": ", batch norm's statistics frozen"}.get(backbone.freeze_norm)
    return f"{backbone.architecture} from {start}{norm or ''}"


def _schedule(schedule: Schedule, optimizer: Optimizer) -> str:
    steps = f" of {schedule.steps} steps" if schedule.steps else ""
    drops = f" at {', '.join(map(str, schedule.milestones))} by {schedule.gamma}" if schedule.milestones else ""
    rate = f"{optimizer.name} at {optimizer.lr}, weight decay {optimizer.weight_decay}"
    return f"{schedule.epochs} epochs{steps}, {rate}, {schedule.name} rate{drops}"


def _parameters(recipe: Recipe) -> int:
    trunk, features = trunk_size(recipe.backbone, recipe.preprocessing.channels)
    return trunk + sum((features + 1) * head.dim for head in recipe.heads)


@cache
def _makers(module: str) -> dict[str, Maker]:
    """Return the recipes of a module by name."""
    return dict(import_module(f"{__name__}.{module}").recipes())


class RecipeTable(Mapping[str, Maker]):
    """Table from the names of all recipes to the functions that make them; it reads modules until a name occurs."""

    def __getitem__(self, name: str) -> Maker:
        for module in reversed(MODULES):  # the small twins first, since most are trained
            if name in _makers(module):
                return _makers(module)[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for module in MODULES:
            yield from _makers(module)

    def __len__(self) -> int:
        return sum(len(_makers(module)) for module in MODULES)


RECIPES = RecipeTable()


@cache
def standard_recipe(name: str) -> Recipe | EnsembleRecipe:
    """Return the recipe or the ensemble of a name in `RECIPES`, without settings; it is built once."""
    return RECIPES[name]()


class Catalogue(Mapping[str, Mapping[str, Any]]):
    """Facts about each recipe for `zoo list` and `zoo info`, by name, sorted; a recipe is made when its row is read."""

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        recipe = standard_recipe(name)
        names = {"method": recipe.method, "backbone": recipe.backbone.name, "dataset": recipe.data.dataset}
        return {"dim": embedding_dim(recipe), **names, **summary(recipe)}

    def __contains__(self, name: object) -> bool:
        return name in RECIPES

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(RECIPES))

    def __len__(self) -> int:
        return len(RECIPES)


CATALOGUE = Catalogue()


def embedding_dim(recipe: Recipe | EnsembleRecipe) -> int:
    """Return the dimension of the embedding, which is that of the pooled features if a recipe has no heads."""
    if isinstance(recipe, EnsembleRecipe):
        return sum(embedding_dim(member) for member in recipe.members)
    return recipe.dim or trunk_size(recipe.backbone, recipe.preprocessing.channels)[1]
