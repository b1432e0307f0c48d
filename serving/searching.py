"""POST /search and POST /embed."""

from __future__ import annotations

import base64
import hashlib
from http import HTTPStatus
from io import BytesIO
from time import perf_counter
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.answers import hit_json
from serving.asking import Search, checked_images, read_crop, read_search
from serving.calibrating import calibration_of
from serving.collection import Collection, collection_of
from serving.finding import Box
from serving.metrics import stage
from serving.refusals import RefusedError, as_json
from serving.searcher import Searcher
from serving.uploads import File, invalid, read_upload
from zoo.errors import ImageError

FORMATS = ("json", "base64", "npy")


async def search(request: Request) -> Response:
    configuration = request.app.state.configuration
    with stage("read"):
        asked = read_search(await read_upload(request, configuration.max_images), configuration)
    start = perf_counter()
    collection = collection_of(request)
    if len(asked.images) < 2:
        body = await to_thread.run_sync(_one, collection, asked, limiter=request.app.state.cores)
    else:
        # One by one, so that others' requests come in between, and a bad image is no matter of the good ones.
        body = {"searches": []}
        for file in asked.images:
            one = Search(asked.ask, (file,))
            body["searches"].append(await to_thread.run_sync(_tried, collection, one, limiter=request.app.state.cores))
    return JSONResponse({**body, "k": asked.ask.k, "milliseconds": round(1000 * (perf_counter() - start), 2)})


async def embed(request: Request) -> Response:
    upload = await read_upload(request, request.app.state.configuration.max_images)
    upload.check_names(frozenset({"format", "crop"}))
    form, crop = upload.one("format") or "json", read_crop(upload.one("crop"))
    if form not in FORMATS:
        raise invalid("format", f"one of {', '.join(FORMATS)}")
    searcher, files = collection_of(request).searcher, checked_images(upload)
    rows = []
    for number, file in enumerate(files):
        try:
            rows.append(await to_thread.run_sync(searcher.embed, file.data, crop, limiter=request.app.state.cores))
        except ImageError as error:
            raise _named(error, number, file) from None
    return _embeddings(np.concatenate(rows), [_content(file, crop) for file in files], form, searcher)


def _one(collection: Collection, asked: Search) -> dict[str, Any]:
    searcher = collection.searcher
    if asked.item is not None:
        embedding = searcher.gallery.embedding(asked.item)[None]
    else:
        embedding = searcher.embed(asked.images[0].data, asked.ask.crop)
    hits = searcher.search(embedding, asked.ask, asked.item)
    calibration = calibration_of(searcher.gallery)
    return {
        "query": {"id": asked.item},
        "results": [hit_json(hit, calibration, collection.path) for hit in hits],
    }


def _tried(collection: Collection, asked: Search) -> dict[str, Any]:
    name = {"name": asked.images[0].name}
    try:
        return {"query": name, "results": _one(collection, asked)["results"]}
    except ImageError as error:
        return {"query": name, **as_json(error)}


def _named(error: ImageError, number: int, file: File) -> RefusedError:
    said = as_json(error)["error"]
    which = f"image {number + 1} ({file.name[:80]})" if file.name else f"image {number + 1}"
    return RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, said["code"], f"Of {which}: {said['message']}")


def _content(file: File, crop: Box | None) -> str:
    """The SHA-256 of the file; a part of an image is another image, and has one of its own."""
    digest = hashlib.sha256(file.data).hexdigest()
    return digest if crop is None else hashlib.sha256(f"{digest} {crop}".encode()).hexdigest()


def _embeddings(rows: np.ndarray, contents: list[str], form: str, searcher: Searcher) -> Response:
    rows = rows.astype("<f4")
    if form == "npy":
        out = BytesIO()
        np.save(out, rows, allow_pickle=False)
        return Response(out.getvalue(), media_type="application/x-npy")
    card = searcher.embedder.card
    # A float32 is told apart from its neighbours by nine digits; more would say nothing.
    values: Any = [[float(f"{value:.9g}") for value in row.tolist()] for row in rows]
    if form == "base64":
        values = [base64.b64encode(row.tobytes()).decode() for row in rows]
    model = {"model": card.name, "fingerprint": card.fingerprint, "dim": card.dim}
    return JSONResponse({**model, "embeddings": values, "content_sha256": contents})
