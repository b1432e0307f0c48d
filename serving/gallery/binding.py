"""Which model a gallery belongs to: the card of the model that embeds it, and where it was loaded from.

model.json says it. Once a rebuild was begun the store says so itself, as the model then changes within one of its
transactions, and the file is a copy for people.
"""

from __future__ import annotations

import json
from pathlib import Path

from serving.gallery.store import Store
from zoo.errors import CardError, GalleryError
from zoo.models.card import Card, card_from_json

MODEL = "model.json"


def model_of(folder: Path, store: Store) -> tuple[Card, str]:
    """The card of the model of a gallery whose store is open, and how the model is loaded."""
    return read_model(folder / MODEL) if store.model is None else parsed_model(store.model, store.path)


def model_text(card: Card, model_ref: str) -> str:
    """What `read_model` reads."""
    return json.dumps({"ref": model_ref, "card": card.to_json()}, indent=2, ensure_ascii=False)


def read_model(path: Path) -> tuple[Card, str]:
    """The card in a model.json, and how the model is loaded. Raises `GalleryError` naming what is wrong."""
    try:
        return parsed_model(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError) as error:
        raise GalleryError(f"{path} does not name the gallery's model: {error}.") from None


def parsed_model(text: str, path: Path) -> tuple[Card, str]:
    """As `read_model`, of the text; `path`: where it comes from."""
    try:
        values = json.loads(text)
        return card_from_json(values["card"]), str(values["ref"])
    except (ValueError, KeyError, TypeError, CardError) as error:
        raise GalleryError(f"{path} does not name the gallery's model: {error}.") from None
