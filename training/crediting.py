"""Whose work a changed recipe is: with another loss, miner or method it is no longer by the name and papers it began
with."""

from __future__ import annotations

import dataclasses
import re
from functools import cache

from training.recipe import Ensemble, Objective, Recipe
from training.recipes import RECIPES
from training.recipes.objectives import DISTANCE, TABLE_2
from training.recipes.settings import REALITY, REVISITING
from training.tables import with_defaults

PROTOCOLS = (REALITY, REVISITING)
"""Papers that many losses are compared in: they say how is trained, whatever the loss."""

OTHERS = "reality-"
"""How methods begin that stand for their paper's protocol; a twin with that loss is none of them."""

_BY_LOSS = re.compile(rf"-({'|'.join(TABLE_2)})(?=-|$)")
"""What in the name of a method that is more than a loss says on which loss it is put (shared-triplet-s-disc)."""

_BY_MINER = re.compile(r"(?<=triplet)-[rshd]$")
"""How triplets' names say their miner; others have none, or that of the one miner that they are known with."""


def credited(recipe: Recipe, standard: Recipe) -> Recipe:
    """The recipe with the method and the sources of its objective, if its loss, miner or method is not `standard`'s.

    standard: what it was made of. The short name is that of the recipes whose objective is nearest, its sources are of
    the one on the same backbone and data set, else of all; where no recipe has the loss, its own name, and of the
    sources those of `PROTOCOLS`. With a miner that no recipe has with the loss, it is named by both: margin-random,
    r-margin-random where rho wraps it, margin-unmined without one. A method that is more than a loss keeps its name
    with any loss and miner that it has no other name for. What was set by name (`method=...`, `sources=...`) stays.
    """
    method, sources = _of(recipe, standard)
    return dataclasses.replace(
        recipe,
        method=method if recipe.method == standard.method else recipe.method,
        sources=sources if recipe.sources == standard.sources else recipe.sources,
    )


def _of(recipe: Recipe, standard: Recipe) -> tuple[str, tuple[str, ...]]:
    new, old = recipe.objective, standard.objective
    if (new.method, new.loss, _miners(new)) == (old.method, old.loss, _miners(old)):
        return standard.method, standard.sources
    known = _alike(new, standard.method.startswith(OTHERS))
    if new.method == old.method != "plain" and not _mined(new, known):
        return _BY_LOSS.sub("", standard.method), standard.sources
    if known:
        method, like = _method(recipe, known)
        return method, _sources(like, standard, known)
    return _method(recipe, _alike(new))[0], tuple(source for source in standard.sources if source in PROTOCOLS)


def _miners(objective: Objective) -> tuple[str | None, str | None]:
    """The miner, and the one that rho wraps."""
    wrapped = objective.miner_args.get("miner", DISTANCE) if objective.miner == "rho" else None
    return objective.miner, wrapped


def _alike(objective: Objective, others: bool = False) -> list[Recipe]:
    """Recipes of the method and loss; of a method that is more than a loss, where none has that loss, of the method."""
    made = [each for each in _singles() if each.method.startswith(OTHERS) == others]
    same = [each for each in made if each.objective.method == objective.method]
    found = [each for each in same if each.objective.loss == objective.loss]
    return found or [each for each in same if objective.method != "plain"]


@cache
def _singles() -> tuple[Recipe, ...]:
    return tuple(made for make in RECIPES.values() if isinstance(made := make(), Recipe))


def _method(recipe: Recipe, known: list[Recipe]) -> tuple[str, str]:
    """The short name, and that of the recipes whose sources it has."""
    objective = recipe.objective
    if mined := _mined(objective, known):
        return (_nearest(recipe, mined),) * 2
    if objective.method != "plain":
        name = _nearest(recipe, known) if known else objective.method
        return name, name
    if not known:
        return (str(objective.loss),) * 2
    miner, wrapped = _miners(objective)
    rest = [each for each in known if (each.objective.miner == "rho") == (miner == "rho")]
    like = _nearest(recipe, rest or known)
    loss = like if rest or not wrapped else f"r-{like}"
    return f"{_BY_MINER.sub('', loss)}-{wrapped or miner or 'unmined'}", like


def _nearest(recipe: Recipe, known: list[Recipe]) -> str:
    # Of those that are equally near the one with the shortest name has nothing special.
    return max(known, key=lambda each: (*_nearness(recipe, each), -len(each.method))).method


def _mined(objective: Objective, known: list[Recipe]) -> list[Recipe]:
    """Those with the same loss and miners."""
    wanted = objective.loss, _miners(objective)
    return [each for each in known if (each.objective.loss, _miners(each.objective)) == wanted]


def _nearness(recipe: Recipe, other: Recipe) -> tuple[bool, bool, int]:
    from training.losses import LOSSES  # torch, for who changes a loss alone

    ours, theirs = recipe.objective, other.objective
    args = with_defaults(LOSSES, ours.loss, ours.loss_args)
    return (
        ours.method_args == theirs.method_args,
        [head.name for head in recipe.heads] == [head.name for head in other.heads],
        sum(args.get(key) == value for key, value in theirs.loss_args.items()),
    )


def _sources(method: str, standard: Recipe, known: list[Recipe]) -> tuple[str, ...]:
    named = [each for each in known if each.method == method] or known
    own = f"{method}-{standard.backbone.name}-{standard.data.dataset}"
    chosen = [each for each in named if each.name == own] or named
    return tuple(dict.fromkeys(source for each in chosen for source in each.sources))


def credited_whole(made: Recipe | Ensemble, name: str) -> Recipe | Ensemble:
    """`credited` of what was made of the recipe `name`, in an ensemble of every member."""
    standard = RECIPES[name]()
    if isinstance(made, Ensemble) and isinstance(standard, Ensemble):
        pairs = zip(made.members, standard.members, strict=True)
        return dataclasses.replace(made, members=tuple(credited(*pair) for pair in pairs))
    if isinstance(made, Recipe) and isinstance(standard, Recipe):
        return credited(made, standard)
    return made
