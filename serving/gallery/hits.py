"""What a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from serving.gallery.items import Item


@dataclass(frozen=True)
class Hit:
    """A neighbour: `similarity` is the cosine, -1 to 1."""

    id: int
    similarity: float
    label: str | None
    source: str


def hits_of(similarities: np.ndarray, ids: np.ndarray, items: Mapping[int, Item]) -> list[Hit]:
    """Nearest first. similarities: float32 [k]; ids: int64 [k]; an id that is not among `items` is no hit."""
    # Rounding may carry the product of two unit vectors a hair past 1.
    similarities = np.clip(similarities, -1, 1)
    pairs = zip(similarities.tolist(), ids.tolist(), strict=True)
    found = [(similarity, items[item_id]) for similarity, item_id in pairs if item_id in items]
    found.sort(key=lambda pair: (-pair[0], pair[1].id))
    return [Hit(item.id, similarity, item.label, item.source) for similarity, item in found]
