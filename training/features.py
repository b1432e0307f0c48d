"""Recipes on cached features: the views that are cached, and a recipe whose heads learn on them. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from training.feature_file import Features
from training.recipe import Augmentation, Backbone, Data, EnsembleRecipe, Recipe
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError
from zoo.models.card import Card

USUAL_AUGMENTATION = Augmentation(flip=0.5, crop="resized", area=(0.25, 1.0), oversample=1)
"""Milder than the augmentation that trunks learn with (areas from 0.08), because a frozen trunk cannot adapt to it."""

FIXED_BY_FEATURES = ("backbone", "preprocessing", "augmentation", "precision")
"""Groups of settings that the features already contain, or that apply to a trunk only."""


@dataclass(frozen=True)
class TrunkModel:
    """A model whose trunk is used: its folder, its card, and the name or path by which it is found."""

    folder: Path
    card: Card
    reference: str


@dataclass(frozen=True)
class Views:
    """`count` random views of each image by an augmentation, from squares as `training.recipe.Data` describes them."""

    count: int
    augmentation: Augmentation
    side: int
    fit: str = "whole"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"--views must be 0 or more, not {self.count}.", code="bad-number")

    def to_json(self) -> dict[str, object]:
        """Return the augmentation and the squares as JSON values."""
        return {**json.loads(json.dumps(asdict(self.augmentation))), "side": self.side, "fit": self.fit}


def views_of_recipe(recipe: Recipe | EnsembleRecipe, count: int, seed: int) -> Views:
    """Return views by a recipe's augmentation.

    Raises:
        UsageError: If the recipe is an ensemble.
    """
    if isinstance(recipe, EnsembleRecipe):
        raise UsageError(f"{recipe.name} is an ensemble; name a recipe of one of its members.", code="ensemble")
    return Views(count, recipe.augmentation, recipe.data.side, recipe.data.fit, seed)


def views_of_model(folder: Path, preprocessing: Preprocessing, count: int, seed: int) -> Views:
    """Return views by the recipe in a model folder, or by `USUAL_AUGMENTATION` without a recipe that can be read."""
    try:
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["recipe"]
        augmentation = augmentation_of(recipe["augmentation"])
        side = int(recipe["data"]["side"])
        fit = recipe["data"].get("fit", Data.fit)  # the first versions did not write it
        return Views(count, augmentation, side, fit, seed)
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return Views(count, USUAL_AUGMENTATION, preprocessing.resize, "whole", seed)


def augmentation_of(values: dict[str, Any]) -> Augmentation:
    """Return the augmentation of its JSON values.

    Raises:
        ValueError: If another version wrote it.
        RecipeError: If a value is out of range.
    """
    known = {field.name for field in fields(Augmentation)}
    if not values.keys() <= known:
        raise ValueError("an augmentation of another version")
    arguments: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Augmentation(**arguments)


def recipe_on_features(
    recipe: Recipe | EnsembleRecipe,
    features: Features,
    card: Card,
    model: str,
    settings: Iterable[str] = (),
    name: str | None = None,
) -> Recipe:
    """Return the recipe with cached features instead of images, and with the trunk that made them.

    Args:
        recipe: The recipe.
        features: The cached features.
        card: The card of the model whose trunk made them.
        model: The name or folder of that model.
        settings: The settings that changed the recipe; those that have no effect on features are refused.
        name: The name of the new model (default: "<method>-on-<model>").

    Raises:
        RecipeError: If the recipe is an ensemble or has no heads, or a setting has no effect.
        UsageError: If another model made the features.
    """
    features.check_model(card)
    if isinstance(recipe, EnsembleRecipe):
        raise RecipeError(
            f"{recipe.name} is an ensemble; train its members' recipes on the features one by one.", code="ensemble"
        )
    if not recipe.heads:
        raise RecipeError(
            f"{recipe.name} has no heads, and without them nothing learns on cached features. Give it one, as in "
            """--set 'heads=[{"name": "embedding", "dim": 128}]'.""",
            code="no-heads",
        )
    _check_settings(settings)
    origin = features.about
    augmentation = dict(origin.augmentation)
    side, fit = augmentation.pop("side"), augmentation.pop("fit")
    file = str(features.path.resolve())
    return replace(
        recipe,
        name=name or f"{recipe.method}-on-{card.name}",
        data=Data(origin.dataset, 1, recipe.data.validation, side, fit, features=file),
        backbone=Backbone(card.backbone, card.architecture, card.architecture_args, model),
        preprocessing=card.preprocessing,
        augmentation=augmentation_of(augmentation),
        batch=replace(recipe.batch, chunk=0),
        precision="fp32",
        sources=tuple(dict.fromkeys((*card.sources, *recipe.sources))),
    )


def _check_settings(settings: Iterable[str]) -> None:
    for setting in settings:
        key = setting.partition("=")[0].strip()
        group = key.partition(".")[0]
        if group in FIXED_BY_FEATURES or (group == "data" and key != "data.validation") or key == "batch.chunk":
            raise RecipeError(
                f"{key} has no effect on cached features: trunk, images and augmentation are those of the file. "
                "Make other features with `zoo features`, or train without --features.",
                code="setting-without-effect",
            )
