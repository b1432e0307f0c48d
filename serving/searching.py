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
from serving.asking import PARAMETERS, Search, checked_images, read_crop, read_search
from serving.collection import Collection, collection_of
from serving.gallery.calibration import stored_calibration
from serving.gallery.gallery import filter_notes
from serving.gallery.search import EXPANSION, NONE, RECIPROCAL, Box, Searcher
from serving.metrics import stage
from serving.queries import read_query
from serving.refusals import RefusedError, as_json
from serving.uploads import File, check_names, invalid, read_upload
from zoo.errors import ImageError, NoTextTowerError, TextError
from zoo.models.text_tower import no_text_tower

ORDERED_BY = {
    NONE: "similarity",
    EXPANSION: "similarity to the query and its first results together; similarity is to the query alone",
    RECIPROCAL: "shared neighbours; similarity is to the query alone",
}
"""By what results are in order, by the kind of re-ranking."""
FORMATS = ("json", "base64", "npy")
MODEL, FINGERPRINT = "X-Model", "X-Model-Fingerprint"
"""The headers that say whose embeddings an array is of, which has no room for it."""


async def search(request: Request) -> Response:
    configuration = request.app.state.configuration
    with stage("read"):
        upload = await read_query(request, configuration.max_images, PARAMETERS)
        asked = read_search(upload, configuration)
    start = perf_counter()
    collection = collection_of(request)
    if asked.texts:
        _check_tower(await to_thread.run_sync(collection.present))
    singly = asked.singly()
    if len(singly) < 2:
        body = await request.app.state.cores.run(_one, collection, asked)
    else:
        # One by one, so that others' requests come in between, and a bad image is no matter of the good ones.
        body = {"searches": []}
        cores = request.app.state.cores
        for number, one in enumerate(singly):
            run = cores.run_aside if number else cores.run
            body["searches"].append(await run(_tried, collection, one))
    chosen, found = asked.ask.selection, any(one.get("results") for one in body.get("searches", [body]))
    said = await to_thread.run_sync(filter_notes, collection.gallery, chosen, found) if chosen else []
    told = {"ordered_by": ORDERED_BY[asked.ask.rerank], "notes": said}
    return JSONResponse({**body, "k": asked.ask.k, **told, "milliseconds": round(1000 * (perf_counter() - start), 2)})


async def embed(request: Request) -> Response:
    upload = await read_upload(request, request.app.state.configuration.max_images)
    check_names(upload.values, ("format", "crop"))
    form, crop = upload.one("format") or "json", read_crop(upload.one("crop"))
    if form not in FORMATS:
        raise invalid("format", f"one of {', '.join(FORMATS)}")
    files = checked_images(upload)
    searcher = await to_thread.run_sync(collection_of(request).present)
    cores, rows = request.app.state.cores, []
    for number, file in enumerate(files):
        try:
            run = cores.run_aside if number else cores.run
            rows.append(await run(searcher.embed, file.data, crop))
        except ImageError as error:
            raise _named(error, number, file) from None
    return _embeddings(np.concatenate(rows), [_content(file, crop) for file in files], form, searcher)


def _one(collection: Collection, asked: Search) -> dict[str, Any]:
    return collection.steadily(lambda searcher: _found(searcher, asked, collection.path))


def _found(searcher: Searcher, asked: Search, path: str) -> dict[str, Any]:
    embedding, query = _embedded(searcher, asked)
    calibration = None if asked.texts else stored_calibration(searcher.gallery)  # fitted to pairs of images
    hits = searcher.search(embedding, asked.ask, () if asked.item is None else (asked.item,), calibration)
    return {
        "query": query,
        "results": [hit_json(hit, calibration, path) for hit in hits],
    }


def _embedded(searcher: Searcher, asked: Search) -> tuple[np.ndarray, dict[str, Any]]:
    """What is searched by, float32 [1, dim], and how the answer calls it."""
    if asked.texts:
        embedding, truncated = searcher.embed_text(asked.texts[0])
        return embedding, {"id": None, "text": asked.texts[0], "truncated": truncated}
    if asked.item is not None:
        return searcher.gallery.store.embedding(asked.item)[None], {"id": asked.item}
    return searcher.embed(asked.images[0].data, asked.ask.crop), {"id": None}


def _check_tower(searcher: Searcher) -> None:
    card = searcher.embedder.card
    if card.text is None:
        raise NoTextTowerError(no_text_tower(card.name))


def _tried(collection: Collection, asked: Search) -> dict[str, Any]:
    name = {"text": asked.texts[0]} if asked.texts else {"name": asked.images[0].name}
    try:
        found = _one(collection, asked)
        return {"query": {**found["query"], **name} if asked.texts else name, "results": found["results"]}
    except (ImageError, TextError) as error:
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
    rows, card = rows.astype("<f4"), searcher.embedder.card
    if form == "npy":
        out = BytesIO()
        np.save(out, rows, allow_pickle=False)
        whose = {MODEL: card.name, FINGERPRINT: card.fingerprint}
        return Response(out.getvalue(), media_type="application/x-npy", headers=whose)
    # A float32 is told apart from its neighbours by nine digits; more would say nothing.
    values: Any = [[float(f"{value:.9g}") for value in row.tolist()] for row in rows]
    if form == "base64":
        values = [base64.b64encode(row.tobytes()).decode() for row in rows]
    model = {"model": card.name, "fingerprint": card.fingerprint, "dim": card.dim}
    return JSONResponse({**model, "embeddings": values, "content_sha256": contents})
