"""Calibration of a gallery: the probability that a result of a search has the query's class.

It is fitted to the results of the gallery's labelled items and to marked results, and kept with the gallery.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from serving.gallery.feedback import MarkedPairs
from serving.gallery.gallery import Gallery
from serving.gallery.index import NO_ROW
from serving.gallery.tune import SEED, drop_self, label_codes
from serving.gallery.types import Attribution, identify_items, parse_stored, utc_now
from zoo.errors import EvaluationError, GalleryError
from zoo.evaluation.calibration import (
    DEPTH,
    ENOUGH_PAIRS,
    IDENTICAL,
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
    "not measured: this needs queries of at least four labels, or four queries without labels, and pairs in either "
    "half of them that a curve can be fitted to"
)
"""Why a calibration has no error."""

_NO_PAIRS = WeightedPairs(np.empty(0), np.empty(0, bool), np.empty(0, np.int64), np.empty(0), np.empty(0))

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownPairs:
    """Pairs of images of which it is known whether they are of one class: results of labelled items, then marks.

    Attributes:
        pairs: The pairs; a query without a label has a class of its own.
        neighbours: Number of results per labelled item; 0 without labels.
        marked: How many of the pairs are marks.
        queries: Number of labelled items that searched.
        left_out: Number of marks that an earlier model measured, on query images that the gallery does not keep.
    """

    pairs: WeightedPairs
    neighbours: int
    marked: int
    queries: int
    left_out: int = 0


def calibrate_gallery(gallery: Gallery, queries: int = QUERIES) -> Calibration:
    """Fit a calibration on at most `queries` labelled items and on the marks, and keep it.

    Raises:
        EvaluationError: Labels and marks do not allow it: too few, all of one kind, or unrelated to similarity.
    """
    return calibrate_pairs(gallery, known_pairs(gallery, queries))


def calibrate_pairs(gallery: Gallery, known: KnownPairs) -> Calibration:
    """Fit a calibration to pairs of the gallery, and keep it with its reliability and origin.

    Raises `EvaluationError`.
    """
    calibration = calibrate(known.pairs, known.neighbours, known.marked)
    reliability = [asdict(part) for part in held_out_bins(known.pairs)]
    measured = asdict(_attribution(gallery, known, bool(reliability)))
    facts = {**calibration.to_json(), "reliability": reliability, "measured": measured}
    gallery.store.set_fact(FACT, json.dumps(facts))
    return calibration


def _attribution(gallery: Gallery, known: KnownPairs, checked: bool) -> Attribution:
    """Return the origin of a calibration; `checked`: whether it was measured on labels outside the fit."""
    parts = [f"each searches all others, {known.neighbours} results count"] if known.neighbours else []
    parts += [f"with {known.marked:,} marked results"] if known.marked else []
    parts += ["a curve of either half of the labels is checked on the other half" if checked else "no labels held out"]
    data = identify_items(gallery.address, gallery.store.contents())
    return Attribution(gallery.card.identity, data, ", ".join(parts), known.queries, SEED, utc_now())


def stored_calibration(gallery: Gallery) -> Calibration | None:
    """Return the gallery's calibration; None where it was never calibrated or only by an earlier version."""
    values = calibration_record(gallery)
    return Calibration.from_json(values) if values else None


def calibration_record(gallery: Gallery) -> dict[str, Any] | None:
    """Return what a gallery keeps of its calibration: the curve, its reliability and its origin; None without one."""
    text = gallery.store.fact(FACT)
    return None if text is None else parse_stored(text, FACT, gallery.address, checked_record)


def checked_record(values: Any) -> dict[str, Any] | None:
    """Return the record of a calibration; None for the logistic curve of an earlier version.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: If it is neither of the two.
    """
    if "contrasts" not in values:
        return None
    Calibration.from_json(values)
    if values.get("measured"):
        Attribution.from_json(values["measured"])
    return dict(values)


def take_over_calibration(gallery: Gallery, record: Mapping[str, Any], items: int) -> bool:
    """Keep another gallery's calibration, with its origin, if it holds for this gallery.

    It does if this gallery has just the other's items and model, and no later calibration of its own.

    Args:
        gallery: The gallery, to which the items of the other one were added.
        record: The `calibration_record` of the other gallery.
        items: The number of items of the other gallery.

    Returns:
        Whether the calibration is kept.
    """
    measured = record.get("measured") or {}
    own = (calibration_record(gallery) or {}).get("measured") or {}
    if measured and measured["model"]["fingerprint"] != gallery.card.fingerprint:
        return False
    if gallery.store.count() != items or own.get("date", "") > measured.get("date", ""):
        return False
    gallery.store.set_fact(FACT, json.dumps(record))
    return True


def renew_calibration(gallery: Gallery) -> None:
    """Calibrate a gallery again if its calibration is the logistic curve of an earlier version."""
    if gallery.store.fact(FACT) is None or stored_calibration(gallery) is not None:
        return
    try:
        calibrate_gallery(gallery)
    except (EvaluationError, GalleryError) as error:
        logger.warning(
            "%s was calibrated by an earlier version. It has no p_same until zoo gallery calibrate succeeds: %s",
            gallery.address,
            error,
        )


def calibration_json(gallery: Gallery) -> dict[str, Any] | None:
    """Return the gallery's calibration as JSON, with its reliability and origin, and why its error was not measured.

    reliability: `Bin` values; measured: `Attribution`, None in calibrations of earlier versions.
    """
    values = calibration_record(gallery)
    if values is None:
        return None
    absent = NO_ERROR if values["error"] is None else None
    return {"reliability": [], "measured": None, **values, "error_not_measured": absent}


def background_of(gallery: Gallery, vector: np.ndarray, exclude: int | None = None) -> Background:
    """Return the background of a query, float32 [1, dim], in a search of all items but `exclude`."""
    similarities, ids = gallery.neighbours(vector, DEPTH + 2)
    return background(similarities[0, (ids[0] != exclude) & (ids[0] != NO_ROW)])


def known_pairs(gallery: Gallery, queries: int = QUERIES) -> KnownPairs:
    """Return the labelled results of at most `queries` labelled items, and all marked results.

    Raises:
        EvaluationError: There are fewer than `ENOUGH_PAIRS` pairs.
    """
    labels, ids = gallery.store.labels(), gallery.index.current().ids()
    codes = label_codes(labels, ids)
    results, neighbours, searched = _results(gallery, ids, codes, queries)
    marks = gallery.store.marks.pairs()
    numbers = {labels.get(item): code for item, code in zip(ids.tolist(), codes.tolist(), strict=True) if code >= 0}
    marked = _marked(gallery, marks, numbers)
    known = KnownPairs(results.joined(marked), neighbours, len(marked.same), searched, marks.left_out)
    if len(known.pairs.same) < ENOUGH_PAIRS:
        without = f" ({left_out_note(marks.left_out)})" if marks.left_out else ""
        raise EvaluationError(
            f"{gallery.address} has {len(results.same)} pairs of labelled items and {len(marked.same)} marked "
            f"results{without}; a calibration needs {ENOUGH_PAIRS}. Label some items, or mark results.",
            code="too-few-pairs",
        )
    return known


def left_out_note(count: int) -> str:
    """Return a sentence about marks that an earlier model measured."""
    return (
        f"{count:,} more left out: the earlier model measured them, and their query images are not kept; mark their "
        "results again"
    )


def _results(gallery: Gallery, ids: np.ndarray, codes: np.ndarray, queries: int) -> tuple[WeightedPairs, int, int]:
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


def _others(gallery: Gallery, ids: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return similarities and ids of the k nearest others of items, both [q, k]; -inf and NO_ROW in empty places."""
    similarities, found = gallery.neighbours(vectors, k + 1)
    missing = ((0, 0), (0, k + 1 - found.shape[1]))  # items may have been removed since
    found = np.pad(found, missing, constant_values=NO_ROW)
    similarities = np.pad(similarities, missing, constant_values=-np.inf)
    return drop_self(similarities, found, ids), drop_self(found, found, ids)


def _marked(gallery: Gallery, marks: MarkedPairs, numbers: dict[str | None, int]) -> WeightedPairs:
    """Return the marked pairs, without identical images."""
    items = np.unique(np.array(marks.items, np.int64))
    if not len(items):
        return _NO_PAIRS
    present, vectors = gallery.index.current().vectors_of(items)
    rows = _others(gallery, present, vectors, DEPTH)[0]
    levels = {item: background(row).level for item, row in zip(present.tolist(), rows, strict=True)}
    kept = np.array([item in levels for item in marks.items]) & (marks.similarities < IDENTICAL)
    base = np.array([levels.get(item, 0.0) for item in marks.items])
    ones, unknown = np.ones(len(base)), np.full(len(base), np.inf)
    pairs = WeightedPairs(marks.similarities - base, marks.same, _mark_classes(marks, numbers), ones, unknown)
    return pairs.chosen(kept)


def _mark_classes(marks: MarkedPairs, numbers: dict[str | None, int]) -> np.ndarray:
    """Return the class of each mark's query: the number of its label, or a number of its own without a label."""
    own: dict[str, int] = {}
    first = max(numbers.values(), default=-1) + 1
    codes = [
        numbers[label] if label in numbers and label is not None else own.setdefault(query, first + len(own))
        for query, label in zip(marks.queries, marks.labels, strict=True)
    ]
    return np.array(codes, np.int64)
