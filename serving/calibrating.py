"""The calibration of a gallery's similarities, fitted to its labelled items and its marks, and kept with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving.gallery import Gallery
from serving.gallery.marks import MarkedPairs
from serving.gallery.measuring import Searched, among_themselves, codes_of, without_own
from zoo.errors import EvaluationError
from zoo.evaluation.calibration import Bin, Calibration, calibrate, held_out_probabilities, reliability_bins

FACT = "calibration"
NEIGHBOURS = 10
ENOUGH_MARKS = 20
"""So many marks suffice where there are no labels."""


NO_ERROR = (
    "not measured: that takes queries of at least four labels, or as many without one, and pairs of either half of "
    "them that a curve can be fitted to"
)
"""Why a calibration has no error."""


@dataclass(frozen=True)
class Pairs:
    """What is known of the gallery's own pairs: neighbours of labelled items, then the results that users marked.

    similarities: float32 [n]; same: bool [n], whether the two are of one class; classes: int64 [n], the class of the
    query, or a number of its own where that is not known. neighbours: how many of each labelled item, 0 without
    labels; marked: how many of the n were marked; left_out: how many marks are not among them, as another model
    measured them and their query was an image that was sent, which nobody has kept.
    """

    similarities: np.ndarray
    same: np.ndarray
    classes: np.ndarray
    neighbours: int
    marked: int
    left_out: int = 0


def calibrate_gallery(gallery: Gallery, queries: int = 2000) -> Calibration:
    """Fit the probability that a neighbour is of the query's class, and keep it; at most so many items search.

    Raises `EvaluationError` where labels and marks do not allow it: too few, or all alike, or nothing to do with
    similarity.
    """
    return calibrate_by(gallery, pairs_of(gallery, queries))


def calibrate_by(gallery: Gallery, pairs: Pairs) -> Calibration:
    """As `calibrate_gallery`, of pairs that are at hand."""
    fitted = calibrate(pairs.similarities, pairs.same, pairs.classes)
    fitted = replace(fitted, neighbours=pairs.neighbours, marked=pairs.marked)
    gallery.set_fact(FACT, json.dumps(fitted.to_json()))
    return fitted


def held_out_bins(pairs: Pairs) -> list[Bin]:
    """The reliability of p_same on queries of classes that it was not fitted to; none where that cannot be measured."""
    chances = held_out_probabilities(pairs.similarities, pairs.same, pairs.classes)
    return [] if chances is None else reliability_bins(chances, pairs.same)


def pairs_of(gallery: Gallery, queries: int = 2000) -> Pairs:
    """The nearest labelled others of at most so many labelled items, and all marked results.

    Raises `EvaluationError` where fewer than two items are labelled and there are not enough marks either.
    """
    index, labels = gallery.index(), gallery.labels()
    ids = index.ids()
    codes = codes_of(labels, ids)
    near, same, classes = _neighbours(index, ids[codes >= 0], codes[codes >= 0], queries)
    marks = gallery.marks.pairs()
    if not near.size and len(marks.same) < ENOUGH_MARKS:
        without = f" ({left_out_note(marks.left_out)})" if marks.left_out else ""
        raise EvaluationError(
            f"{gallery.path} has fewer than two labelled items, and {len(marks.same)} marked results{without}; "
            f"{ENOUGH_MARKS} marks would do without labels."
        )
    numbers = {labels.get(item): code for item, code in zip(ids.tolist(), codes.tolist(), strict=True) if code >= 0}
    marked = _classes_of(marks, numbers)
    return Pairs(
        np.concatenate([near.ravel(), marks.similarities]),
        np.concatenate([same.ravel(), marks.same]),
        np.concatenate([np.repeat(classes, near.shape[1]), marked]),
        near.shape[1],
        len(marked),
        marks.left_out,
    )


def left_out_note(count: int) -> str:
    return (
        f"{count:,} more left out: the model before measured them, and the images that were searched by are not kept; "
        "mark their results again"
    )


def calibration_of(gallery: Gallery) -> Calibration | None:
    """The one that was kept; None where the gallery was never calibrated."""
    text = gallery.fact(FACT)
    return None if text is None else Calibration.from_json(json.loads(text))


def told(calibration: Calibration | None) -> dict[str, Any] | None:
    """A calibration as answers give it, with the reason where its error was not measured."""
    if calibration is None:
        return None
    return {**calibration.to_json(), "error_not_measured": NO_ERROR if calibration.error is None else None}


def _neighbours(
    index: Searched, ids: np.ndarray, codes: np.ndarray, queries: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of some of the ids: similarities float32 [q, k], whether the neighbour shares the code [q, k], own codes [q]."""
    k = min(NEIGHBOURS, len(ids) - 1)
    if k < 1:
        return np.empty((0, 0), np.float32), np.empty((0, 0), bool), np.empty(0, np.int64)
    (asks, _), (similarities, found) = among_themselves(len(ids), lambda rows: index.vectors_of(ids[rows]), k, queries)
    near, others = without_own(similarities, found, asks), without_own(found, found, asks)
    own = codes[np.searchsorted(ids, asks)]
    return near, codes[np.searchsorted(ids, others)] == own[:, None], own


def _classes_of(marks: MarkedPairs, numbers: dict[str | None, int]) -> np.ndarray:
    """The number of each query's label; of a query without a label one of its own."""
    own: dict[str, int] = {}
    first = max(numbers.values(), default=-1) + 1
    codes = [
        numbers[label] if label in numbers and label is not None else own.setdefault(query, first + len(own))
        for query, label in zip(marks.queries, marks.labels, strict=True)
    ]
    return np.array(codes, np.int64)
