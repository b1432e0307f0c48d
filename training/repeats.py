"""Repeats of a training: whether a model of the local zoo came from the same recipe, weights and images.

A recipe names the model that it starts from and its data set. Another model, or other images, may have that name today.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.cached.feature_folder import read_features
from training.recipe import Recipe, same_recipe
from zoo.data import load_dataset
from zoo.data.dataset import FOLDER, DataIdentity, Dataset, without
from zoo.errors import UsageError, ZooError
from zoo.models.card import TRAINING_DATA, Card, read_card
from zoo.models.names import find_model

BASE, STARTS = "base", "starts"
"""Entries of recipe.json, the identity of the model that a run started from, and of plan.json, the fingerprints of the
models that the recipes of a study start from, by their names."""


def base_of(start: bool | str) -> Card | None:
    """Return the card of the model that a run starts from; None if it starts from other weights or from none."""
    if isinstance(start, bool):
        return None
    try:
        return read_card(find_model(start))
    except ZooError:
        return None  # a folder or a file of weights alone


def fingerprint_of_start(start: bool | str) -> str | None:
    """Return the fingerprint of the model that a run starts from; None as in `base_of`."""
    base = base_of(start)
    return None if base is None else base.fingerprint


def is_repeat(record: Mapping[str, Any], recipe: Recipe, root: str | Path | None = None) -> bool:
    """Return whether a model was trained by exactly this recipe, from the same model and on the same images.

    Args:
        record: The model's recipe.json.
        recipe: The recipe.
        root: The folder or table of a user's own images; None leaves them out.
    """
    if not same_recipe(record.get("recipe"), recipe):
        return False
    if _recorded_start(record) != fingerprint_of_start(recipe.backbone.pretrained):
        return False
    if recipe.data.features:
        return _same_images(record, read_features(Path(recipe.data.features)).identity)
    images = _own_images(recipe, root)
    return images is None or _same_images(record, _readable(images, record).identity)


def check_repeatable(record: Mapping[str, Any], recipe: Recipe, name: str, root: str | Path | None = None) -> None:
    """Check that the recorded weights and images are there, so that another training by the recipe is a repetition.

    Args:
        record: The recipe.json of a model.
        recipe: The recipe that it records.
        name: The model's name, for messages.
        root: As for `is_repeat`.

    Raises:
        UsageError: If the run would start from another model (code "other-model"), or see other images
            ("other-images").
    """
    if problem := changed_start(record):
        raise UsageError(f"{name} {problem}. Put that model back under its name.", code="other-model")
    images = _own_images(recipe, root)
    if images is not None and not _same_images(record, _readable(images, record).identity):
        expected = record[TRAINING_DATA]
        raise UsageError(
            f"{name} was trained on {expected['images']} images ({expected['sha256'][:8]}), and {root} has others: "
            f"{len(images)} ({images.identity.sha256[:8]}). Name the images that it was trained on.",
            code="other-images",
        )


def changed_start(record: Mapping[str, Any]) -> str:
    """Return why a model cannot be trained from where it started, after its name in a sentence; "" if it can.

    Args:
        record: The model's recipe.json.
    """
    recorded, recipe = _recorded_start(record), record.get("recipe")
    backbone = recipe.get("backbone") if isinstance(recipe, Mapping) else None
    start = backbone.get("pretrained") if isinstance(backbone, Mapping) else None
    found = fingerprint_of_start(start) if isinstance(start, str) else None
    if recorded is None or found == recorded:
        return ""
    present = "is missing" if found is None else f"has the fingerprint {found[:12]} today"
    return f"was trained from {start} with the fingerprint {recorded[:12]}, which {present}"


def _recorded_start(record: Mapping[str, Any]) -> str | None:
    base = record.get(BASE)
    return base.get("fingerprint") if isinstance(base, Mapping) else None


def _own_images(recipe: Recipe, root: str | Path | None) -> Dataset | None:
    """Return the training images of a user; None for a data set, whose name says which they are."""
    return None if root is None or recipe.data.dataset != FOLDER else load_dataset(FOLDER, "train", root)


def _readable(images: Dataset, record: Mapping[str, Any]) -> Dataset:
    """Return images without those that the recorded run could not read."""
    return without(images, set(record.get("skipped") or ()))


def _same_images(record: Mapping[str, Any], images: DataIdentity) -> bool:
    """Return whether images are those of a record; a model that learned nothing has none."""
    known = record.get(TRAINING_DATA)
    return not isinstance(known, Mapping) or images.sha256 == known["sha256"]
