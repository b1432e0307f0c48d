"""Whose work a changed recipe is: with another loss or method it is no longer by the name and papers it began with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from training.recipe import Ensemble, Objective, Recipe
from training.recipes import RECIPES
from training.recipes.settings import REALITY, REVISITING
from training.tables import with_defaults

PROTOCOLS = (REALITY, REVISITING)
"""Papers that many losses are compared in: they say how is trained, whatever the loss."""

OTHERS = "reality-"
"""How methods begin that stand for their paper's protocol; a twin with that loss is none of them."""


def credited(recipe: Recipe, standard: Recipe) -> Recipe:
    """The recipe with the method and the sources of its objective, if its loss or method is not that of `standard`.

    standard: what it was made of. The short name is that of the recipes whose objective is nearest, its sources are of
    the one on the same backbone and data set, else of all; where no recipe has the loss, its own name, and of the
    sources those of `PROTOCOLS`. A method that is more than a loss keeps its name with any loss that it has no other
    name for. What was set by name (`method=...`, `sources=...`) stays.
    """
    method, sources = _of(recipe, standard)
    return dataclasses.replace(
        recipe,
        method=method if recipe.method == standard.method else recipe.method,
        sources=sources if recipe.sources == standard.sources else recipe.sources,
    )


def _of(recipe: Recipe, standard: Recipe) -> tuple[str, tuple[str, ...]]:
    new, old = recipe.objective, standard.objective
    if (new.method, new.loss) == (old.method, old.loss):
        return standard.method, standard.sources
    known = _alike(new, standard.method.startswith(OTHERS))
    if new.method == old.method != "plain" and not _mined(new, known):
        return standard.method, standard.sources
    if known:
        method = _method(recipe, known)
        return method, _sources(method, standard, known)
    return _method(recipe, _alike(new)), tuple(source for source in standard.sources if source in PROTOCOLS)


def _alike(objective: Objective, others: bool = False) -> list[Recipe]:
    """Recipes of the method and loss; of a method that is more than a loss, where none has that loss, of the method."""
    made = [each for each in _singles() if each.method.startswith(OTHERS) == others]
    same = [each for each in made if each.objective.method == objective.method]
    found = [each for each in same if each.objective.loss == objective.loss]
    return found or [each for each in same if objective.method != "plain"]


def _singles() -> Iterator[Recipe]:
    for make in RECIPES.values():
        made = make()
        if isinstance(made, Recipe):
            yield made


def _method(recipe: Recipe, known: list[Recipe]) -> str:
    """The short name; its own of a loss that is not known, or that has names with several miners and none with this."""
    objective = recipe.objective
    mined = _mined(objective, known)
    if not known or (not mined and objective.method == "plain"):
        rest = {each.method for each in known if each.objective.miner != "rho" and not each.objective.method_args}
        own = str(objective.loss) if objective.method == "plain" else objective.method
        return rest.pop() if len(rest) == 1 else own
    # Of those that are equally near the one with the shortest name has nothing special.
    return max(mined or known, key=lambda each: (*_nearness(recipe, each), -len(each.method))).method


def _mined(objective: Objective, known: list[Recipe]) -> list[Recipe]:
    """Those with the same loss and miner."""
    wanted = objective.loss, objective.miner
    return [each for each in known if (each.objective.loss, each.objective.miner) == wanted]


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
