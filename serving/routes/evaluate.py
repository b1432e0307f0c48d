"""Evaluation of the labelled gallery through the served index and model, and its map."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from serving.dependencies import CollectionDep
from serving.errors import RefusedError
from serving.gallery import Gallery
from serving.gallery.calibration import (
    calibrate_pairs,
    calibration_json,
    held_out_bins,
    known_pairs,
    stored_calibration,
)
from serving.gallery.evaluate import SERVED_K, gallery_steps, report, served_model_report
from serving.gallery.gallery import MODEL
from serving.gallery.search import Searcher
from serving.openapi import READING, WRITING, refusals
from serving.routes.feedback import marks_report
from serving.schemas import Evaluation, GalleryMap
from zoo.errors import EvaluationError, ItemNotFoundError
from zoo.evaluation.calibration import Bin
from zoo.files import LockHeldError, locked

router = APIRouter()
FACT = "evaluation"


@router.post(
    "/evaluate",
    summary="Measure the labelled items exactly and through the index, and calibrate p_same",
    response_model_exclude_unset=True,
    responses=WRITING | refusals(409),
)
async def evaluate(collection: CollectionDep) -> Evaluation:
    """Measure R@1, R@5, R@10 and MAP@R; needs a write key. It may take minutes and runs once at a time.

    served_model: of up to 256 items whose image files are still there, the least cosine of the stored embeddings to
    those that the served runtime and precision make now, and R@1 through the index by each. reliability: in each tenth
    of p_same, the mean promise and the observed share, for pairs of classes that the curve was not fitted to. marks:
    numbers of marked results, the share of right ones, and those that contradict the labels.
    """

    def measure(searcher: Searcher) -> Evaluation:
        with _locked(searcher.gallery):
            values = evaluate_gallery(searcher.gallery, served_model_report(searcher))
        return Evaluation(**values, marks=marks_report(searcher.gallery, collection))

    return await collection.call(measure)


@router.get("/evaluate", summary="The last evaluation", responses=READING | refusals(404))
async def last_evaluation(collection: CollectionDep) -> Evaluation:
    """Return the last evaluation, with the marks of now. changed_since: whether the gallery has changed since."""

    def read(searcher: Searcher) -> Evaluation:
        gallery = searcher.gallery
        text = gallery.store.fact(FACT)
        if text is None:
            raise ItemNotFoundError("this gallery was not evaluated yet; POST /evaluate does it.")
        values = json.loads(text)
        changed = gallery.store.change() != values["change"]
        return Evaluation(**values, marks=marks_report(gallery, collection), changed_since=changed)

    return await collection.call(read)


@router.get("/map", summary="Items as points of a plane, up to 3,000 of them", responses=READING)
async def gallery_map(collection: CollectionDep) -> GalleryMap:
    """Return a two-dimensional map of the embeddings, from -1 to 1 on one scale.

    explained: the shares of the variance in the first two principal components, from which the map starts.
    """
    return await collection.call(lambda searcher: GalleryMap(**collection.atlas.map_of(searcher.gallery)))


@contextmanager
def _locked(gallery: Gallery) -> Iterator[None]:
    """Allow one evaluation of a gallery at a time, in all processes. Raises `RefusedError` (409) for another one."""
    try:
        with locked(gallery.path / MODEL, wait=False):
            yield
    except LockHeldError:
        message = "This gallery is being evaluated. GET /evaluate returns the result afterwards."
        raise RefusedError(409, "being_evaluated", message) from None


def evaluate_gallery(gallery: Gallery, served_model: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure a gallery, calibrate it, and keep both with it.

    Args:
        gallery: The gallery.
        served_model: Comparison of stored embeddings with those of the served model.

    Raises:
        EvaluationError: If no two items share a label and no result was marked.
    """
    steps, not_measured = _steps(gallery)
    bins, not_calibrated, left_out = _calibrate(gallery)
    stats = gallery.store.stats()
    values = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "items": stats.items,
        "change": stats.change,
        "index_recall_at_10": gallery.recall(SERVED_K),
        "served_model": served_model,
        "steps": steps,
        "not_measured": not_measured,
        "calibration": calibration_json(stored_calibration(gallery)),
        "not_calibrated": not_calibrated,
        "marks_left_out": left_out,
        "reliability": [asdict(one) for one in bins],
    }
    gallery.store.set_fact(FACT, json.dumps(values))
    return values


def _steps(gallery: Gallery) -> tuple[list[dict[str, Any]], str | None]:
    """Return the measured steps, or the reason why there are none, if results were marked at least."""
    try:
        return report(gallery_steps(gallery), joined=True), None
    except EvaluationError as error:
        if not gallery.store.marks.counts().total:
            raise
        return [], str(error)


def _calibrate(gallery: Gallery) -> tuple[list[Bin], str | None, int]:
    """Return the reliability of a new calibration or the reason why there is none, and the number of unused marks."""
    left_out = 0
    try:
        pairs = known_pairs(gallery)
        left_out = pairs.left_out
        calibrate_pairs(gallery, pairs)
    except EvaluationError as error:
        return [], str(error), left_out
    return held_out_bins(pairs), None, left_out
