"""The calibration of a gallery's similarities, fitted to its own labelled items and kept with them."""

from __future__ import annotations

import json

import numpy as np

from serving.gallery import Gallery
from serving.gallery.measuring import codes_of, without_own
from zoo.errors import EvaluationError
from zoo.evaluation import nearest_neighbours
from zoo.evaluation.calibration import Calibration, calibrate

FACT = "calibration"
NEIGHBOURS = 10


def calibrate_gallery(gallery: Gallery, queries: int = 2000) -> Calibration:
    """Fit the probability that a neighbour is of the query's class, and keep it; at most so many items search.

    Raises `EvaluationError` where the labels do not allow it: none, or all alike, or nothing to do with similarity.
    """
    near, same, codes = neighbours_of(gallery, queries)
    fitted = calibrate(near, same, codes)
    gallery.set_fact(FACT, json.dumps(fitted.to_json()))
    return fitted


def neighbours_of(gallery: Gallery, queries: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of at most so many labelled items: the similarities of their nearest labelled others, float32 [n, k]; whether
    these share the label, bool [n, k]; and codes of their own labels, [n].

    Raises `EvaluationError` where fewer than two items are labelled.
    """
    ids, vectors = gallery.vectors()
    codes = codes_of(gallery.labels(), ids)
    labelled = codes >= 0
    if labelled.sum() < 2:
        raise EvaluationError(f"{gallery.path} has fewer than two labelled items; nothing can be fitted to them.")
    vectors, codes = vectors[labelled], codes[labelled]
    k = min(NEIGHBOURS, len(vectors) - 1)
    asks = np.sort(np.random.default_rng(0).choice(len(vectors), min(queries, len(vectors)), replace=False))
    similarities, found = nearest_neighbours(vectors[asks], vectors, k + 1)
    near, others = without_own(similarities, found, asks), without_own(found, found, asks)
    return near, codes[others] == codes[asks][:, None], codes[asks]


def calibration_of(gallery: Gallery) -> Calibration | None:
    """The one that was kept; None where the gallery was never calibrated."""
    text = gallery.fact(FACT)
    return None if text is None else Calibration.from_json(json.loads(text))
