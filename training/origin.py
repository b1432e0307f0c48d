"""Which recipe of the papers a run follows, and in what it departs from it: recorded with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from training.recipe import Ensemble, Recipe
from training.recipes import RECIPES, standard_recipe

IDENTITY = ("name", "method", "seed", "sources")
"""What makes no other recipe of one: papers print means over seeds, and the method is named after the objective."""


UNKNOWN: dict[str, Any] = {"origin": None, "settings": {}}
"""Of a model that follows no recipe, whatever its name."""


def origin_facts(recipe: Recipe | Ensemble, name: str | None = None) -> dict[str, Any]:
    """For recipe.json: `origin`, a name of `RECIPES`, and `settings`, what the recipe has otherwise.

    name: of the recipe that it was made of (default: its own). None and {} for what is made of no recipe and for heads
    on kept features, whose trunk is another model's.
    """
    name = recipe.name if name is None else name
    if name not in RECIPES or (isinstance(recipe, Recipe) and recipe.data.features):
        return UNKNOWN
    return {"origin": name, "settings": changes(recipe, standard_recipe(name))}


def changes(recipe: Recipe | Ensemble, standard: Recipe | Ensemble) -> dict[str, Any]:
    """Setting -> value, as `--set` takes them, where `recipe` says otherwise than `standard`.

    Of an ensemble what all members have in common is named once, the rest with the member's number.
    """
    if isinstance(recipe, Recipe) and isinstance(standard, Recipe):
        return dict(_differences(recipe.to_json(), standard.to_json()))
    ours, theirs = (made.members if isinstance(made, Ensemble) else (made,) for made in (recipe, standard))
    if len(ours) != len(theirs):
        return {"members": len(ours)}
    found = [changes(a, b) for a, b in zip(ours, theirs, strict=True)]
    common = {key: value for key, value in found[0].items() if all(f.get(key, ...) == value for f in found)}
    own = {f"members.{i}.{key}": v for i, each in enumerate(found) for key, v in each.items() if key not in common}
    return {**common, **own}


def _differences(new: Mapping[str, Any], old: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in new.items():
        before = old.get(key, ...)
        if value == before or (not prefix and key in IDENTITY):
            continue
        if isinstance(value, dict) and isinstance(before, dict) and before.keys() <= value.keys():
            yield from _differences(value, before, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
