"""What is read of a collection: GET /items and its items, /map, /model, /stats, /readyz."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.answers import item_json
from serving.collection import collection_of
from serving.configuration import Configuration
from serving.gallery.calibration import calibration_json, stored_calibration
from serving.gallery.filters import Filter
from serving.gallery.gallery import filter_notes
from serving.gallery.map import Atlas
from serving.gallery.search import Searcher
from serving.openapi import MAX_LIMIT
from serving.refusals import RefusedError
from serving.uploads import check_given_once, check_names, invalid, item_id, json_object, whole_number
from zoo.paths import thread_count


async def items(request: Request) -> Response:
    values, collection = request.query_params, collection_of(request)
    gallery, path = collection.gallery, collection.path
    check_names(values, ("offset", "limit", "label", "where", "sample"))
    check_given_once(values, {"label"})
    limit = whole_number(values, "limit", 50, 1, MAX_LIMIT)
    offset, labels = whole_number(values, "offset", 0, 0, 10**15 - 1), tuple(values.getlist("label"))
    if "sample" in values:
        if len(values) > 1:
            raise invalid("sample", "given alone: it is of all items")
        size = whole_number(values, "sample", 24, 1, MAX_LIMIT)
        sample = await to_thread.run_sync(gallery.store.sample, size)
        total = await to_thread.run_sync(gallery.store.count)
        return JSONResponse({"total": total, "items": [item_json(one, path) for one in sample]})
    chosen = Filter(labels, json_object(values.get("where"), "where"))
    page = await to_thread.run_sync(gallery.store.items, offset, limit, None, chosen)
    total = await to_thread.run_sync(gallery.store.count, None, chosen)
    rows = [item_json(one, path) for one in page]
    said = await to_thread.run_sync(filter_notes, gallery, chosen, total > 0) if chosen else []
    return JSONResponse({"total": total, "offset": offset, "limit": limit, "items": rows, "notes": said})


async def item(request: Request) -> Response:
    wanted, collection = item_id(request.path_params["id"]), collection_of(request)
    return JSONResponse(item_json(await to_thread.run_sync(collection.gallery.store.item, wanted), collection.path))


async def thumbnail(request: Request) -> Response:
    wanted, gallery = item_id(request.path_params["id"]), collection_of(request).gallery
    found = await to_thread.run_sync(gallery.store.item, wanted)
    # Another gallery may be served at this address tomorrow, so the browser asks each time.
    headers = {"ETag": f'"{found.content_sha256}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    picture = await to_thread.run_sync(gallery.store.thumbnail, wanted)
    return Response(picture.data, media_type=picture.media_type, headers=headers)


async def plane(request: Request) -> Response:
    collection = collection_of(request)
    return JSONResponse(await to_thread.run_sync(collection.steadily, _map_by(collection.atlas)))


async def model(request: Request) -> Response:
    searcher = await to_thread.run_sync(collection_of(request).present)
    embedder, card = searcher.embedder, searcher.embedder.card
    stats = await to_thread.run_sync(searcher.gallery.store.stats)
    body = {
        **{key: getattr(card, key) for key in ("name", "method", "backbone", "dataset", "dim", "licence")},
        "fingerprint": card.fingerprint,
        "preprocessing": dataclasses.asdict(card.preprocessing),
        "text": None if card.text is None else {"length": card.text.length},
        **{key: getattr(embedder, key) for key in ("runtime", "precision", "device")},
        "gallery": dataclasses.asdict(stats),
        "limits": {**dataclasses.asdict(searcher.limits), **_most(request.app.state.configuration)},
    }
    return JSONResponse(body)


def _most(configuration: Configuration) -> dict[str, int]:
    """Of one request; what an image may hold is the searcher's own to say."""
    return {name: getattr(configuration, name) for name in ("max_images", "max_body", "max_k")}


async def stats(request: Request) -> Response:
    collection = collection_of(request)
    found = await to_thread.run_sync(collection.steadily, _stats)
    return JSONResponse({**found, "service": _service(request.app.state.configuration)})


def _stats(searcher: Searcher) -> dict[str, Any]:
    gallery = searcher.gallery
    calibration = stored_calibration(gallery)
    return {
        **dataclasses.asdict(gallery.store.stats()),
        "index": dataclasses.asdict(gallery.index.stats()),
        "marks": dataclasses.asdict(gallery.store.marks.counts()),
        "calibration": calibration_json(calibration),
    }


def _map_by(atlas: Atlas) -> Callable[[Searcher], dict[str, Any]]:
    return lambda searcher: atlas.map_of(searcher.gallery)


def _service(configuration: Configuration) -> dict[str, Any]:
    whole = {name: getattr(configuration, name) for name in ("concurrency", "queue_seconds", "rate", "burst")}
    each = {**dataclasses.asdict(configuration.share()), "threads": thread_count()}
    return {"workers": configuration.workers, "limits": whole, "each_worker": each}


async def ready(request: Request) -> Response:
    """Of this collection alone; at the service's root BentoML answers, for all."""
    collection = collection_of(request)
    if not await request.app.state.cores.run_aside(collection.steadily, Searcher.is_ready):
        message = "The golden image has not the embedding that it should have."
        raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message)
    return JSONResponse({"ready": True})


async def alive(request: Request) -> Response:
    return Response()
