"""An arm on a data set: the recipes that are trained for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from string import Template

from training.recipe import Ensemble, Recipe
from training.recipes.settings import PAPER_DATASETS
from training.resolving import explicit, resolve
from training.studies.stand_ins import takes, with_recipes
from training.studies.study import Arm, Study
from zoo.errors import RecipeError, UsageError

SELECTIONS = ("last", "validation")
"""Which epoch is measured: the last of a run on all training classes, as the papers train; or the one that does best on
training classes held out. Test data select nothing."""

HELD_OUT = 0.1


def recipes_of(
    study: Study, arm: Arm, dataset: str, seed: int, selection: str = "last", settings: tuple[str, ...] = ()
) -> tuple[Recipe, ...]:
    """The arm's recipe, or those of an ensemble's members, on a data set; `settings` come last.

    A data set without recipes of its own has those of its stand-in. Raises `RecipeError` where there is no such recipe
    or it does not take the settings, and `UsageError` for a data set that is not the study's.
    """
    if not takes(study, dataset):
        known = f"the study {study.name} can be run on {', '.join(study.datasets)}, not on {dataset}."
        raise UsageError(f"{known} {study.elsewhere}".rstrip())
    return _seeded(arm, dataset, seed, selection, tuple(settings))


@cache
def _seeded(arm: Arm, dataset: str, seed: int, selection: str, settings: tuple[str, ...]) -> tuple[Recipe, ...]:
    """Return the recipes of a run; they are values that are built once."""
    members = arm.copies * _resolved(arm.recipe, arm.settings, arm.backbone, dataset, settings)
    # The seeds of an ensemble's members follow one another, as `zoo train --seed` has them.
    return tuple(
        dataclasses.replace(_select(member, selection), seed=seed * len(members) + i)
        for i, member in enumerate(members)
    )


def changes_of(arm: Arm, dataset: str) -> list[str]:
    """What makes the arm's model another than that of its recipe's name: its settings, unless they only say what the
    recipe or a default says already, and its copies."""
    own, named = (
        [explicit(member) for member in _resolved(arm.recipe, settings, arm.backbone, dataset, ())]
        for settings in (arm.settings, ())
    )
    copies = [f"{arm.copies} copies"] if arm.copies > 1 else []
    return [*(arm.settings if own != named else ()), *copies]


@cache
def _resolved(
    recipe: str, own: tuple[str, ...], backbone: str, dataset: str, settings: tuple[str, ...]
) -> tuple[Recipe, ...]:
    """The recipes with both kinds of settings, whatever their seed; kept, for reading settings takes its time."""
    words, name = _words(dataset, backbone), recipe_name(recipe, dataset, backbone)
    dim, owner = resolve(name).dim, with_recipes(dataset)
    words |= {"dim": dim, "half": dim // 2, "batch": 112 if owner in PAPER_DATASETS else 96}
    read = [] if owner == dataset else [f"data.dataset={dataset}"]
    made = resolve(name, [*(_fill(setting, words) for setting in own), *read, *settings])
    return made.members if isinstance(made, Ensemble) else (made,)


def recipe_name(recipe: str, dataset: str, backbone: str) -> str:
    """An arm's recipe on a data set, $dataset and $backbone replaced."""
    return _fill(recipe, _words(dataset, backbone))


def _words(dataset: str, backbone: str) -> dict[str, object]:
    owner = with_recipes(dataset)
    return {"dataset": owner, "backbone": backbone if owner in PAPER_DATASETS else "conv4"}


def _select(recipe: Recipe, selection: str) -> Recipe:
    """The recipe with classes held out, or with none."""
    share = 0.0 if selection == "last" else recipe.data.validation or HELD_OUT
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, validation=share))


def _fill(text: str, words: Mapping[str, object]) -> str:
    try:
        return Template(text).substitute(words)
    except (KeyError, ValueError) as error:
        raise RecipeError(f"an arm's {text!r} holds {error}; known are ${', $'.join(words)}.") from None
