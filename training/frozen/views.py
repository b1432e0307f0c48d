"""Which random views of images are cached: a recipe's, those of the recipe that made a model, or the usual ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from training.recipe import Augmentation, Data, Ensemble, Recipe
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError

USUAL = Augmentation(flip=0.5, crop="resized", area=(0.25, 1.0), oversample=1)
"""Milder than what a trunk learns by (areas from 0.08): a trunk that stays as it is cannot get used to it."""


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
            raise UsageError(f"--views is 0 or more, not {self.count}.")

    def to_json(self) -> dict[str, object]:
        return {**json.loads(json.dumps(asdict(self.augmentation))), "side": self.side, "fit": self.fit}


def views_of(recipe: Recipe | Ensemble, count: int, seed: int) -> Views:
    """Views by a recipe's augmentation. Raises `UsageError` for an ensemble."""
    if isinstance(recipe, Ensemble):
        raise UsageError(f"{recipe.name} is an ensemble; name one of the recipes of its members.")
    return Views(count, recipe.augmentation, recipe.data.side, recipe.data.fit, seed)


def usual_views(folder: Path, how: Preprocessing, count: int, seed: int) -> Views:
    """Views by the recipe in a model folder; by `USUAL` where it has none that this version can read."""
    try:
        recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["recipe"]
        augmentation = augmentation_of(recipe["augmentation"])
        side = int(recipe["data"]["side"])
        fit = recipe["data"].get("fit", Data.fit)  # the first versions did not write it
        return Views(count, augmentation, side, fit, seed)
    except (OSError, ValueError, KeyError, TypeError, RecipeError):
        return Views(count, USUAL, how.resize, "whole", seed)


def augmentation_of(values: dict[str, Any]) -> Augmentation:
    """An augmentation from its JSON. Raises `ValueError` for one of another version, `RecipeError` for a bad value."""
    known = {field.name for field in fields(Augmentation)}
    if not values.keys() <= known:
        raise ValueError("an augmentation of another version")
    made: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Augmentation(**made)
