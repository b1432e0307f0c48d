"""Recipes as the authors' published code has them: resolution, and the differences from the paper's recipe.

`training.recipes.as_published` has the departures of the code. They are applied as `--set` applies settings, and the
user's own settings take precedence.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from training.overrides import check_names, override, resolve, with_explicit_defaults
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import standard_recipe
from training.recipes.as_published import SUFFIX, PublishedCode, Unswitched, published_code


@dataclass(frozen=True)
class Difference:
    """A setting that differs between the paper's recipe and the published code.

    Attributes:
        key: The setting.
        paper: Its value in the paper's recipe.
        code: Its value in the code.
        reason: What the code does.
    """

    key: str
    paper: Any
    code: Any
    reason: str

    @property
    def setting(self) -> str:
        """Return KEY=VALUE with the code's value, as `--set` takes it."""
        return f"{self.key}={self.code if isinstance(self.code, str) else json.dumps(self.code)}"


@dataclass(frozen=True)
class Switch:
    """The differences of a recipe's published code.

    Attributes:
        name: The name of the recipe.
        paper: Its paper; None for another than the five.
        repository: The repository of the paper's authors; None if they published no code.
        differences: The settings that are switched.
        unswitched: The departures that are not.
    """

    name: str
    paper: str | None
    repository: str | None
    differences: tuple[Difference, ...]
    unswitched: tuple[Unswitched, ...]

    @property
    def summary(self) -> str:
        """Return in a sentence what the switch does."""
        if self.paper is None:
            return f"{self.name} is not of one of the papers whose published code is known here; nothing is switched."
        if self.repository is None:
            return f"{self.name}: its authors published no code of this paper; nothing is switched."
        if not self.differences:
            return f"{self.name} has no settings that differ from the published code, {self.repository}."
        return f"{self.name}: settings of the published code, {self.repository}."

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def resolve_as_published(
    name: str, settings: Iterable[str] = (), seed: int | None = None, rename: str | None = None
) -> Recipe | EnsembleRecipe:
    """Return a recipe as `training.overrides.resolve` does, with the settings of the authors' published code.

    The name ends with `SUFFIX` unless `rename` gives another. A recipe without differences is returned unchanged.

    Args:
        name: A name of `RECIPES`.
        settings: Settings of the user, which take precedence over those of the code.
        seed: The seed, as in `resolve`.
        rename: The name of the new model.

    Raises:
        RecipeError: If the name, a key or a value is wrong.
    """
    settings = list(settings)
    resolved = resolve(name, settings, seed, rename)
    dataset = standard_recipe(name).data.dataset
    if isinstance(resolved, Recipe):
        switched = _switch(resolved, dataset, settings)
        if switched is resolved or rename is not None:
            return switched
        return dataclasses.replace(switched, name=f"{switched.name}{SUFFIX}")
    members = tuple(_switch(member, dataset, settings) for member in resolved.members)
    if members == resolved.members:
        return resolved
    if rename is not None:
        return dataclasses.replace(resolved, members=members)
    renamed = f"{resolved.name}{SUFFIX}"
    named = tuple(dataclasses.replace(member, name=f"{renamed}.{i}") for i, member in enumerate(members))
    return dataclasses.replace(resolved, name=renamed, members=named)


def published_switch(name: str, settings: Iterable[str] = ()) -> Switch:
    """Return what `resolve_as_published` switches, of an ensemble that of its first member.

    Args:
        name: A name of `RECIPES`.
        settings: Settings of the user.

    Raises:
        RecipeError: If the name, a key or a value is wrong.
    """
    settings = list(settings)
    resolved = resolve(name, settings)
    recipe = resolved if isinstance(resolved, Recipe) else resolved.members[0]
    code = published_code(recipe, standard_recipe(name).data.dataset)
    if code is None:
        return Switch(name, None, None, (), ())
    return Switch(name, code.paper, code.repository, _differences(recipe, code, settings), code.unswitched)


def _switch(recipe: Recipe, dataset: str, settings: list[str]) -> Recipe:
    """Return a recipe with the settings of the published code that differ, or the same recipe if none does."""
    code = published_code(recipe, dataset)
    differences = () if code is None else _differences(recipe, code, settings)
    if code is None or not differences:
        return recipe
    changed = override(recipe, [difference.setting for difference in differences])
    check_names(changed)
    departures = (
        f"Trained as in the authors' published code, {code.repository}, where it departs from the paper.",
        *(f"{each.key}: {each.reason}" for each in differences),
        *(f"Not as in that code, {each.subject}: {each.reason}" for each in code.unswitched),
    )
    return dataclasses.replace(changed, as_published=True, departures=departures)


def _differences(recipe: Recipe, code: PublishedCode, settings: list[str]) -> tuple[Difference, ...]:
    """Return the changes of the code to values that the recipe does not have and the user has not set."""
    given = {setting.partition("=")[0].strip() for setting in settings}
    if "objective.miner_args.published" in given:  # the distance follows the form of rho
        given.add("objective.loss_args.squared")
    if "schedule.name" in given:  # the code's values belong to its schedule
        given |= {"schedule.milestones", "schedule.gamma"}
    explicit = with_explicit_defaults(recipe).to_json()
    found = []
    for change in code.changes:
        paper = _value(explicit, change.key.split("."))
        paper = change.paper if paper is None and change.paper is not None else paper
        overlaps = any(change.key == key or _is_below(change.key, key) or _is_below(key, change.key) for key in given)
        if paper != change.code and not overlaps:
            found.append(Difference(change.key, paper, change.code, change.reason))
    return tuple(found)


def _is_below(key: str, group: str) -> bool:
    return key.startswith(f"{group}.")


def _value(tree: Any, path: list[str]) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree
