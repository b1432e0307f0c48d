"""Calibration of a gallery: the probability that a neighbour is of the query's class.

It is fitted to the gallery's labelled items and marked results, and kept with the gallery.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving.gallery.feedback import MarkedPairs
from serving.gallery.gallery import Gallery
from serving.gallery.tune import SearchableIndex, drop_self, label_codes, nearest_of_sample
from zoo.errors import EvaluationError
from zoo.evaluation.calibration import Bin, Calibration, calibrate, held_out_probabilities, reliability_bins

FACT = "calibration"
NEIGHBOURS = 10
ENOUGH_MARKS = 20
"""Number of marks that suffices without labels."""

NO_ERROR = (
    "not measured: this needs queries of at least four labels, or four queries without labels, and pairs in either "
    "half of them that a curve can be fitted to"
)
"""Why a calibration has no error."""


@dataclass(frozen=True)
class KnownPairs:
    """Pairs of images of which it is known whether they are of one class: neighbours of labelled items, then marks.

    Attributes:
        similarities: Cosines, float32 [n].
        same: Whether the two are of one class, bool [n].
        classes: Class of the query, int64 [n]; a number of its own where it has no label.
        neighbours: Number of neighbours per labelled item; 0 without labels.
        marked: How many of the pairs are marks.
        left_out: Number of marks that an earlier model measured, on query images that the gallery does not keep.
    """

    similarities: np.ndarray
    same: np.ndarray
    classes: np.ndarray
    neighbours: int
    marked: int
    left_out: int = 0


def calibrate_gallery(gallery: Gallery, queries: int = 2000) -> Calibration:
    """Fit a calibration on at most `queries` labelled items and on the marks, and keep it.

    Raises:
        EvaluationError: Labels and marks do not allow it: too few, all of one kind, or unrelated to similarity.
    """
    return calibrate_pairs(gallery, known_pairs(gallery, queries))


def calibrate_pairs(gallery: Gallery, pairs: KnownPairs) -> Calibration:
    """Fit a calibration to pairs of the gallery, and keep it. Raises `EvaluationError`."""
    calibration = calibrate(pairs.similarities, pairs.same, pairs.classes)
    calibration = replace(calibration, neighbours=pairs.neighbours, marked=pairs.marked)
    gallery.store.set_fact(FACT, json.dumps(calibration.to_json()))
    return calibration


def stored_calibration(gallery: Gallery) -> Calibration | None:
    """Return the gallery's calibration; None where it was never calibrated."""
    text = gallery.store.fact(FACT)
    return None if text is None else Calibration.from_json(json.loads(text))


def calibration_json(calibration: Calibration | None) -> dict[str, Any] | None:
    """Return a calibration as JSON, with the reason where its error was not measured."""
    if calibration is None:
        return None
    return {**calibration.to_json(), "error_not_measured": NO_ERROR if calibration.error is None else None}


def held_out_bins(pairs: KnownPairs) -> list[Bin]:
    """Return the reliability of p_same on queries of classes outside the fit; empty where it cannot be measured."""
    probabilities = held_out_probabilities(pairs.similarities, pairs.same, pairs.classes)
    return [] if probabilities is None else reliability_bins(probabilities, pairs.same)


def known_pairs(gallery: Gallery, queries: int = 2000) -> KnownPairs:
    """Return the nearest labelled neighbours of at most `queries` labelled items, and all marked results.

    Raises:
        EvaluationError: Fewer than two items are labelled and fewer than `ENOUGH_MARKS` results are marked.
    """
    index, labels = gallery.index.current(), gallery.store.labels()
    ids = index.ids()
    codes = label_codes(labels, ids)
    near, same, classes = _neighbours(index, ids[codes >= 0], codes[codes >= 0], queries)
    marks = gallery.store.marks.pairs()
    if not near.size and len(marks.same) < ENOUGH_MARKS:
        without = f" ({left_out_note(marks.left_out)})" if marks.left_out else ""
        raise EvaluationError(
            f"{gallery.address} has fewer than two labelled items and {len(marks.same)} marked results{without}. "
            f"Without labels, {ENOUGH_MARKS} marks suffice.",
            code="too-few-pairs",
        )
    numbers = {labels.get(item): code for item, code in zip(ids.tolist(), codes.tolist(), strict=True) if code >= 0}
    marked = _mark_classes(marks, numbers)
    return KnownPairs(
        np.concatenate([near.ravel(), marks.similarities]),
        np.concatenate([same.ravel(), marks.same]),
        np.concatenate([np.repeat(classes, near.shape[1]), marked]),
        near.shape[1],
        len(marked),
        marks.left_out,
    )


def left_out_note(count: int) -> str:
    """Return a sentence about marks that an earlier model measured."""
    return (
        f"{count:,} more left out: the earlier model measured them, and their query images are not kept; mark their "
        "results again"
    )


def _neighbours(
    index: SearchableIndex, ids: np.ndarray, codes: np.ndarray, queries: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for a sample of the ids, similarities float32 [q, k], equal codes bool [q, k] and own codes int64 [q]."""
    k = min(NEIGHBOURS, len(ids) - 1)
    if k < 1:
        return np.empty((0, 0), np.float32), np.empty((0, 0), bool), np.empty(0, np.int64)
    (asks, _), (similarities, found) = nearest_of_sample(len(ids), lambda rows: index.vectors_of(ids[rows]), k, queries)
    near, others = drop_self(similarities, found, asks), drop_self(found, found, asks)
    own = codes[np.searchsorted(ids, asks)]
    return near, codes[np.searchsorted(ids, others)] == own[:, None], own


def _mark_classes(marks: MarkedPairs, numbers: dict[str | None, int]) -> np.ndarray:
    """Return the class of each mark's query: the number of its label, or a number of its own without a label."""
    own: dict[str, int] = {}
    first = max(numbers.values(), default=-1) + 1
    codes = [
        numbers[label] if label in numbers and label is not None else own.setdefault(query, first + len(own))
        for query, label in zip(marks.queries, marks.labels, strict=True)
    ]
    return np.array(codes, np.int64)
