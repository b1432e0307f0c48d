"""Calibration of a gallery: the probability that a result of a search has the query's class.

It is fitted to the results of the gallery's labelled items, and kept with the gallery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from serving.gallery.gallery import VectorGallery
from serving.gallery.index import NO_ROW
from serving.gallery.tune import SEED, drop_self, label_codes
from serving.gallery.types import Attribution, identify_items, parse_stored, utc_now
from zoo.errors import EvaluationError
from zoo.evaluation.calibration import (
    DEPTH,
    ENOUGH_PAIRS,
    Background,
    Calibration,
    WeightedPairs,
    background,
    calibrate,
    held_out_bins,
    pairs_of_searches,
)

FACT = "calibration"
QUERIES = 2000
"""Largest number of labelled items that search for a calibration."""

NO_ERROR = (
    "not measured: this needs queries of at least four labels, and pairs in either half of them that a curve can be "
    "fitted to"
)
"""Why a calibration has no error."""

_NO_PAIRS = WeightedPairs(np.empty(0), np.empty(0, bool), np.empty(0, np.int64), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class KnownPairs:
    """Labelled results of labelled items.

    Attributes:
        pairs: The pairs of an item and a result.
        neighbours: Number of results per labelled item; 0 without labels.
        queries: Number of labelled items that searched.
    """

    pairs: WeightedPairs
    neighbours: int
    queries: int


def calibrate_gallery(gallery: VectorGallery, queries: int = QUERIES) -> Calibration:
    """Fit a calibration on at most `queries` labelled items, and keep it.

    Raises:
        EvaluationError: The labels do not allow it: too few, all of one kind, or unrelated to similarity.
    """
    return calibrate_pairs(gallery, known_pairs(gallery, queries))


def calibrate_pairs(gallery: VectorGallery, known: KnownPairs) -> Calibration:
    """Fit a calibration to pairs of the gallery, and keep it with its reliability and origin.

    Raises `EvaluationError`.
    """
    calibration = calibrate(known.pairs, known.neighbours)
    reliability = [asdict(part) for part in held_out_bins(known.pairs)]
    measured = asdict(_attribution(gallery, known, bool(reliability)))
    facts = {**calibration.to_json(), "reliability": reliability, "measured": measured}
    gallery.store.set_fact(FACT, json.dumps(facts))
    return calibration


def _attribution(gallery: VectorGallery, known: KnownPairs, checked: bool) -> Attribution:
    """Return the origin of a calibration; `checked`: whether it was measured on labels outside the fit."""
    check = "a curve of either half of the labels is checked on the other half" if checked else "no labels held out"
    protocol = f"each searches all others, {known.neighbours} results count, {check}"
    data = identify_items(gallery.address, gallery.store.contents())
    return Attribution(gallery.card.identity, data, protocol, known.queries, SEED, utc_now())


def stored_calibration(gallery: VectorGallery) -> Calibration | None:
    """Return the gallery's calibration; None where it was never calibrated."""
    values = calibration_record(gallery)
    return Calibration.from_json(values) if values else None


def calibration_record(gallery: VectorGallery) -> dict[str, Any] | None:
    """Return what a gallery keeps of its calibration: the curve, its reliability and its origin; None without one."""
    text = gallery.store.fact(FACT)
    return None if text is None else parse_stored(text, FACT, gallery.address, checked_record)


def checked_record(values: Any) -> dict[str, Any]:
    """Return the record of a calibration.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: If it is not a calibration's record.
    """
    Calibration.from_json(values)
    Attribution.from_json(values["measured"])
    return {**values, "reliability": list(values["reliability"])}


def take_over_calibration(gallery: VectorGallery, record: Mapping[str, Any], items: int) -> bool:
    """Keep another gallery's calibration, with its origin, if it holds for this gallery.

    It does if this gallery has just the other's items and model, and no later calibration of its own.

    Args:
        gallery: The gallery, to which the items of the other one were added.
        record: The `calibration_record` of the other gallery.
        items: The number of items of the other gallery.

    Returns:
        Whether the calibration is kept.
    """
    measured, own = record["measured"], calibration_record(gallery)
    if measured["model"]["fingerprint"] != gallery.card.fingerprint or gallery.store.count() != items:
        return False
    if own is not None and own["measured"]["date"] > measured["date"]:
        return False
    gallery.store.set_fact(FACT, json.dumps(record))
    return True


def calibration_json(gallery: VectorGallery) -> dict[str, Any] | None:
    """Return the gallery's calibration as JSON, with its reliability and origin, and why its error was not measured.

    reliability: `Bin` values; measured: `Attribution`.
    """
    values = calibration_record(gallery)
    if values is None:
        return None
    absent = NO_ERROR if values["error"] is None else None
    return {**values, "error_not_measured": absent}


def background_of(gallery: VectorGallery, vector: np.ndarray, exclude: int | None = None) -> Background:
    """Return the background of a query, float32 [1, dim], in a search of all images but that of item `exclude`."""
    similarities, ids = gallery.neighbours(vector, DEPTH + 2)
    own = list(gallery.store.contents_of([exclude]).values()) if exclude is not None else []
    return background(similarities[0, ~np.isin(ids[0], [*own, NO_ROW])])


def known_pairs(gallery: VectorGallery, queries: int = QUERIES) -> KnownPairs:
    """Return the labelled results of at most `queries` labelled items.

    Raises:
        EvaluationError: There are fewer than `ENOUGH_PAIRS` pairs.
    """
    ids = gallery.index.current().ids()
    codes = label_codes(gallery.store.content_labels(), ids)
    known = KnownPairs(*_results(gallery, ids, codes, queries))
    if len(known.pairs.same) < ENOUGH_PAIRS:
        raise EvaluationError(
            f"{gallery.address} has {len(known.pairs.same)} pairs of labelled items; a calibration needs "
            f"{ENOUGH_PAIRS}. Label more items.",
            code="too-few-samples",
        )
    return known


def _results(
    gallery: VectorGallery, ids: np.ndarray, codes: np.ndarray, queries: int
) -> tuple[WeightedPairs, int, int]:
    """Return the pairs of a sample of the labelled items and their results, and the numbers of results and items.

    All items are searched, as a user's query searches them; `pairs_of_searches` leaves unlabelled results out.
    """
    labelled, k = ids[codes >= 0], min(DEPTH, len(ids) - 1)
    if not len(labelled) or k < 1:
        return _NO_PAIRS, 0, 0
    draws = np.random.default_rng(SEED).choice(len(labelled), min(queries, len(labelled)), replace=False)
    asks, vectors = gallery.index.current().vectors_of(np.sort(labelled[draws]))
    similarities, found = _others(gallery, asks, vectors, k)
    own = codes[np.searchsorted(ids, asks)]
    places = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
    theirs = np.where(ids[places] == found, codes[places], -1)  # items added after the ids were read have no code
    outcomes = np.where(theirs < 0, -1, theirs == own[:, None])
    return pairs_of_searches(similarities, outcomes, own), k, len(asks)


def _others(gallery: VectorGallery, ids: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return similarities and ids of the k nearest others of items, both [q, k]; -inf and NO_ROW in empty places."""
    similarities, found = gallery.neighbours(vectors, k + 1)
    missing = ((0, 0), (0, k + 1 - found.shape[1]))  # items may have been removed since
    found = np.pad(found, missing, constant_values=NO_ROW)
    similarities = np.pad(similarities, missing, constant_values=-np.inf)
    return drop_self(similarities, found, ids), drop_self(found, found, ids)
