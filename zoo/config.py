"""timm's config.json beside the card: two files that say the same of a network must agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.cards import Card
from zoo.errors import ModelFolderError
from zoo.files import read_json

FILE = "config.json"


def check_config(folder: Path, card: Card) -> None:
    """Raise `ModelFolderError` where config.json is no JSON object of timm's form or contradicts the card.

    It is what timm builds the trunk and its transforms from, so that a card that lies, or a file of another model,
    would give one set of embeddings here and another there. A folder without it is none of timm's, which is allowed.
    """
    path = folder / FILE
    if not path.is_file():
        return
    try:
        said = _facts(read_json(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelFolderError(
            f"{path} is not a config.json as timm writes it, perhaps cut off. Get the model folder anew."
        ) from None
    for name, value in _facts_of(card).items():
        if not _equal(said[name], value):
            raise ModelFolderError(
                f"{path} says {name} {said[name]!r}, the card of {card.name} says {value!r}: one of them was altered "
                "or is of another model. Get the model folder anew; zoo verify names what else is wrong."
            )


def _facts(config: Mapping[str, Any]) -> dict[str, Any]:
    images = config["pretrained_cfg"]
    names = ("mean", "std", "interpolation", "input_size", "crop_pct")
    return {"architecture": config["architecture"], **{name: images[name] for name in names}}


def _facts_of(card: Card) -> dict[str, Any]:
    how = card.preprocessing
    return {
        "architecture": card.architecture,
        "mean": list(how.mean),
        "std": list(how.std),
        "interpolation": how.interpolation,
        "input_size": [how.channels, how.crop, how.crop],
        "crop_pct": how.crop / how.resize,
    }


def _equal(said: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(said, list) and len(said) == len(value) and all(map(_equal, said, value))
    if isinstance(value, float):
        return type(said) in (int, float) and math.isclose(said, value, rel_tol=1e-9)
    return bool(said == value)
