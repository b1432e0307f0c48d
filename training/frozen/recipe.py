"""A recipe's method and heads on cached features: what of it holds, and what the features decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from training.frozen.views import augmentation_of
from training.recipe import Backbone, Data, Ensemble, Recipe
from zoo.errors import RecipeError
from zoo.features import Features
from zoo.models.card import Card

DECIDED = ("backbone", "preprocessing", "augmentation", "precision")
"""Groups of settings that went into the features, or that have no trunk to apply to."""


def on_features(
    recipe: Recipe | Ensemble,
    features: Features,
    card: Card,
    model: str,
    settings: Iterable[str] = (),
    name: str | None = None,
) -> Recipe:
    """The recipe with the features in the place of images and the model's trunk in the place of its own.

    model: where the trunk is found, a name or folder. settings: those that the recipe was changed by; the ones that
    features cannot follow are refused. name: of the new model; by default "<method>-on-<model>".

    Raises `RecipeError` for an ensemble, for a recipe without heads, of which nothing would be left to learn, and for
    settings as above; `UsageError` where the features are another model's.
    """
    features.check_model(card)
    if isinstance(recipe, Ensemble):
        raise RecipeError(f"{recipe.name} is an ensemble; train its members' recipes on the features one by one.")
    if not recipe.heads:
        raise RecipeError(
            f"{recipe.name} has no heads: nothing of it learns on cached features. Give it one, as in "
            """--set 'heads=[{"name": "embedding", "dim": 128}]'."""
        )
    _check_settings(settings)
    about = features.about
    how = dict(about.augmentation)
    side, fit = how.pop("side"), how.pop("fit")
    file = str(features.path.resolve())
    return replace(
        recipe,
        name=name or f"{recipe.method}-on-{card.name}",
        data=Data(about.dataset, 1, recipe.data.validation, side, fit, features=file),
        backbone=Backbone(card.backbone, card.architecture, card.architecture_args, model),
        preprocessing=card.preprocessing,
        augmentation=augmentation_of(how),
        batch=replace(recipe.batch, chunk=0),
        precision="fp32",
        sources=tuple(dict.fromkeys((*card.sources, *recipe.sources))),
    )


def _check_settings(settings: Iterable[str]) -> None:
    for setting in settings:
        key = setting.partition("=")[0].strip()
        group = key.partition(".")[0]
        if group in DECIDED or (group == "data" and key != "data.validation") or key == "batch.chunk":
            raise RecipeError(
                f"{key} changes nothing on cached features: trunk, images and augmentation are those of the file. "
                "Make other features with `zoo features`, or train without --features."
            )
