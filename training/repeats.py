"""Repeats of a training: whether a model of the local zoo came from the same recipe, weights, code and images.

A recipe names the model that it starts from, classes of the user and its data set. These names may stand for another
model, other code or other images today.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.cached.feature_folder import read_features
from training.construction import class_at
from training.overrides import recorded_classes
from training.recipe import Recipe, same_recipe
from zoo.data import load_dataset
from zoo.data.dataset import FOLDER, DataIdentity, Dataset, without
from zoo.errors import UsageError, ZooError
from zoo.models.card import TRAINING_DATA, Card, read_card
from zoo.models.names import find_model

BASE, CODE, PARTS = "base", "code", "parts"
"""Entries of recipe.json: the identity of the model that a run started from, and the SHA-256 of the source of each
class of the user; and of plan.json: the fingerprints and hashes of all of these, by their names (`parts_of`)."""


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


def code_of(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the source of each class that a recorded recipe names by its place, if there is a source.

    The classes are imported.
    """
    found = {place: _source_of(place) for place in sorted(set(recorded_classes(recipe)))}
    return {place: hashlib.sha256(source.encode()).hexdigest() for place, source in found.items() if source}


def _source_of(place: str) -> str:
    with suppress(ZooError, OSError, TypeError):  # as of a class that was typed into an interpreter
        return inspect.getsource(class_at(place))
    return ""


def parts_of(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of the model that a recorded recipe starts from, and the hashes of `code_of`, by name."""
    start = recipe["backbone"]["pretrained"]
    fingerprint = fingerprint_of_start(start)
    return {**({str(start): fingerprint} if fingerprint else {}), **code_of(recipe)}


def is_repeat(record: Mapping[str, Any], recipe: Recipe, root: str | Path | None = None) -> bool:
    """Return whether a model was trained by exactly this recipe and code, from the same model, on the same images.

    Args:
        record: The model's recipe.json.
        recipe: The recipe.
        root: The folder or table of a user's own images; None leaves them out.
    """
    if not same_recipe(record.get("recipe"), recipe):
        return False
    if _recorded_start(record) != fingerprint_of_start(recipe.backbone.pretrained):
        return False
    if _changed_code(record, recipe):
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
        UsageError: If the run would start from another model (code "other-model"), use other code
            ("other-definition") or see other images ("other-images").
    """
    if problem := changed_start(record):
        raise UsageError(f"{name} {problem}. Put that model back under its name.", code="other-model")
    for place in _changed_code(record, recipe):
        raise UsageError(
            f"{name} cannot be trained again: the source of {place} has changed since. Put it back, or train a new "
            "model.",
            code="other-definition",
        )
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


def _changed_code(record: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Return the classes of the user whose source is another one than the recorded."""
    recorded = record.get(CODE) or {}
    return [place for place, digest in code_of(recipe.record).items() if recorded.get(place, digest) != digest]


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
