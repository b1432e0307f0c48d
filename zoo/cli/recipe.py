"""Recipe of `zoo train`: resolved, as published, on cached features, fitted to few classes, and printed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zoo.console import count, note, print_json, print_table

if TYPE_CHECKING:
    import numpy as np

    from training.cached.feature_folder import Features
    from training.recipe import EnsembleRecipe, Recipe


def resolve_recipe(
    name: str, settings: list[str], seed: int | None, new_name: str | None, as_published: bool, show: bool
) -> Recipe | EnsembleRecipe:
    """Return the recipe of a name with settings.

    As published, report on stderr if that changes nothing, unless the differences will be shown.
    """
    from training.overrides import resolve, with_custom_name

    if not as_published:
        return with_custom_name(resolve(name, settings, seed, new_name), name)
    from training.recipes.published_code import published_switch, resolve_as_published

    switch = published_switch(name, settings)
    if not switch.differences and not show:
        note(switch.summary)
    return with_custom_name(resolve_as_published(name, settings, seed, new_name), name)


def show_recipe(
    recipe: Recipe | EnsembleRecipe, name: str, settings: list[str], as_published: bool, as_json: bool
) -> None:
    """Print the recipe as JSON; as published, the differences from the paper's recipe, and with --json both."""
    if not as_published:
        print_json(recipe.to_json())
        return
    from training.recipes.published_code import published_switch

    switch = published_switch(name, settings)
    if as_json:
        print_json({"recipe": recipe.to_json(), "published_code": switch.to_json()})
        return
    print(switch.summary)
    if switch.differences:
        rows = [
            [each.key, _setting_text(each.paper), _setting_text(each.code), each.reason] for each in switch.differences
        ]
        print_table(("setting", "paper", "code", "reason"), rows)
    if switch.unswitched:
        print("Departures of the code that no setting copies:")
        print_table(("not switched", "reason"), [[each.subject, each.reason] for each in switch.unswitched])


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_cached_features(folder: str) -> Features:
    """Return cached features; a missing or damaged folder is reported before torch is loaded."""
    from training.cached.feature_folder import read_features

    return read_features(folder)


def recipe_on_cached_features(
    recipe: Recipe | EnsembleRecipe,
    features: Features,
    model: str | None,
    settings: list[str],
    new_name: str | None,
) -> Recipe | EnsembleRecipe:
    """Return the recipe for cached features of a model's trunk, fitted to their classes."""
    from training.cached.feature_folder import recipe_on_features
    from zoo.models.card import read_card
    from zoo.models.names import find_model

    name = model or features.about.model
    made = recipe_on_features(recipe, features, read_card(find_model(name)), name, settings, new_name)
    return fit_to_images(made, features.labels, settings)


def fit_to_images(
    recipe: Recipe | EnsembleRecipe, labels: np.ndarray, settings: Iterable[str]
) -> Recipe | EnsembleRecipe:
    """Return the recipe with batches and validation that the classes allow, and print on stderr what was changed."""
    from training.overrides import fit_to_classes

    fitted, changed = fit_to_classes(recipe, labels, settings)
    if changed:
        classes = count(len(set(labels.tolist())), "training class", "training classes")
        note(f"the recipe is for more than {classes}; changed: {', '.join(changed)} (other values: --set)")
    return fitted
