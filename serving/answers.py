"""How hits and items look in an answer."""

from __future__ import annotations

from typing import Any

from serving.gallery import Hit, Item
from zoo.evaluation.calibration import Calibration


def hit_json(hit: Hit, calibration: Calibration | None, path: str) -> dict[str, Any]:
    """`p_same`: the probability that it is of the query's class; null where the gallery was never calibrated.

    path: of the collection (`Collection.path`).
    """
    chance = None if calibration is None else round(float(calibration.probability(hit.similarity)), 4)
    return {**vars(hit), "p_same": chance, "thumbnail": thumbnail_path(hit.id, path)}


def item_json(item: Item, path: str) -> dict[str, Any]:
    return {**vars(item), "thumbnail": thumbnail_path(item.id, path)}


def thumbnail_path(wanted: int, path: str) -> str:
    return f"{path}/items/{wanted}/thumbnail"
