"""GET and POST /evaluate: the labelled gallery, measured through the very index and model that are served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving import feedback
from serving.collection import collection_of
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
from serving.refusals import RefusedError
from zoo.errors import EvaluationError, ItemNotFoundError
from zoo.evaluation.calibration import Bin
from zoo.files import LockHeldError, locked

FACT = "evaluation"


async def measure(request: Request) -> Response:
    """R@K and MAP@R, exactly and through the index, its recall, what the served model makes of the images today, a new
    calibration: kept for GET; what the marks say.
    """
    collection = collection_of(request)
    return JSONResponse(await to_thread.run_sync(collection.steadily, partial(_measured, collection.path)))


async def last(request: Request) -> Response:
    collection = collection_of(request)
    return JSONResponse(await to_thread.run_sync(collection.steadily, partial(_kept, collection.path)))


def _measured(path: str, searcher: Searcher) -> dict[str, Any]:
    with _alone(searcher.gallery):
        return {
            **evaluate(searcher.gallery, served_model_report(searcher)),
            "marks": feedback.report(searcher.gallery, path),
        }


@contextmanager
def _alone(gallery: Gallery) -> Iterator[None]:
    """Allow one evaluation of a gallery at a time in all processes. Raises `RefusedError` (409) for a second one."""
    try:
        with locked(gallery.path / MODEL, wait=False):
            yield
    except LockHeldError:
        message = "This gallery is being evaluated. GET /evaluate has the outcome once that is done."
        raise RefusedError(HTTPStatus.CONFLICT, "being_evaluated", message) from None


def _kept(path: str, searcher: Searcher) -> dict[str, Any]:
    """The last measurement, with the marks as they are now."""
    gallery = searcher.gallery
    text = gallery.store.fact(FACT)
    if text is None:
        raise ItemNotFoundError("this gallery was not evaluated yet; POST /evaluate does it.")
    found = json.loads(text)
    marks = feedback.report(gallery, path)
    return {**found, "marks": marks, "changed_since": gallery.store.change() != found["change"]}


def evaluate(gallery: Gallery, served_model: dict[str, Any] | None = None) -> dict[str, Any]:
    """The measurement, kept with the gallery; served_model: what `served_model_report` says of it.

    Raises `EvaluationError` where no two items share a label, and no result was marked either.
    """
    steps, not_measured = _steps(gallery)
    bins, not_calibrated, left_out = _calibrated(gallery)
    calibration, stats = stored_calibration(gallery), gallery.store.stats()
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "items": stats.items,
        "change": stats.change,
        "index_recall_at_10": gallery.recall(SERVED_K),
        "served_model": served_model,
        "steps": steps,
        "not_measured": not_measured,
        "calibration": calibration_json(calibration),
        "not_calibrated": not_calibrated,
        "marks_left_out": left_out,
        "reliability": [asdict(one) for one in bins],
    }
    gallery.store.set_fact(FACT, json.dumps(found))
    return found


def _steps(gallery: Gallery) -> tuple[list[dict[str, Any]], str | None]:
    """What the labelled items measure; or why nothing, where there are marks at least."""
    try:
        return report(gallery_steps(gallery), joined=True), None
    except EvaluationError as error:
        if not gallery.store.marks.counts().total:
            raise
        return [], str(error)


def _calibrated(gallery: Gallery) -> tuple[list[Bin], str | None, int]:
    """The reliability of a new calibration on pairs that it was not fitted to; or why there is none; marks left out."""
    left_out = 0
    try:
        pairs = known_pairs(gallery)
        left_out = pairs.left_out
        calibrate_pairs(gallery, pairs)
    except EvaluationError as error:
        return [], str(error), left_out
    return held_out_bins(pairs), None, left_out
