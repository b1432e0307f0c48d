"""GET and POST /evaluate: the labelled gallery, measured through the very index and model that are served."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.calibrating import calibrate_gallery, calibration_of
from serving.collection import collection_of
from serving.gallery import Gallery
from serving.served import SERVED_K, gallery_steps, report
from zoo.errors import EvaluationError, ItemNotFoundError

FACT = "evaluation"


async def measure(request: Request) -> Response:
    """R@1 and MAP@R, exactly and through the index, its recall, and a new calibration; kept for GET."""
    return JSONResponse(await to_thread.run_sync(evaluate, collection_of(request).gallery))


async def last(request: Request) -> Response:
    return JSONResponse(await to_thread.run_sync(_kept, collection_of(request).gallery))


def _kept(gallery: Gallery) -> dict[str, Any]:
    text = gallery.fact(FACT)
    if text is None:
        raise ItemNotFoundError("this gallery was not evaluated yet; POST /evaluate does it.")
    found = json.loads(text)
    return {**found, "changed_since": gallery.change() != found["change"]}


def evaluate(gallery: Gallery) -> dict[str, Any]:
    """The measurement, kept with the gallery. Raises `EvaluationError` where no two items share a label."""
    steps = report(gallery_steps(gallery), joined=True)
    try:
        calibrate_gallery(gallery)
        reason = None
    except EvaluationError as error:
        reason = str(error)
    calibration, stats = calibration_of(gallery), gallery.stats()
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "items": stats.items,
        "change": stats.change,
        "index_recall_at_10": gallery.recall(SERVED_K),
        "steps": steps,
        "calibration": None if calibration is None else calibration.to_json(),
        "not_calibrated": reason,
    }
    gallery.set_fact(FACT, json.dumps(found))
    return found
