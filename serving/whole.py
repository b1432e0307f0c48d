"""What is asked of a service and not of one of its collections: GET /collections and /metrics, and its front page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from serving.collection import FOLDER, Collection
from serving.collections import Collections
from serving.configuration import READ_KEYS
from serving.keys import reading_key, unauthorised
from serving.metrics import ITEMS, RECALL, exposition
from serving.refusals import RefusedError


async def collections(request: Request) -> Response:
    """Those that the request's key may read."""
    key = reading_key(request.scope)
    readable = _all(request).readable(key)
    if not readable:
        raise unauthorised(key, READ_KEYS)
    return JSONResponse({"collections": await to_thread.run_sync(_told, readable)})


async def metrics(request: Request) -> Response:
    """They tell of all collections, so a key must read all of them."""
    key, served = reading_key(request.scope), _all(request)
    if len(served.readable(key)) < len(served.each):
        raise unauthorised(key, READ_KEYS, "every collection")
    text, media_type = await to_thread.run_sync(_measured, served)
    return Response(text, headers={"content-type": media_type, "Cache-Control": "no-store"})


async def front(request: Request) -> Response:
    """Each collection has a page of its own, which leads to the others."""
    return RedirectResponse(f"{_all(request).each[0].path.lstrip('/')}/")


async def elsewhere(request: Request) -> Response:
    message = f"The galleries of this service have names: ask at {FOLDER}/NAME/... instead; GET {FOLDER} lists them."
    raise RefusedError(HTTPStatus.NOT_FOUND, "name_a_collection", message)


def _all(request: Request) -> Collections:
    found: Collections = request.app.state.collections
    return found


def _told(readable: Sequence[Collection]) -> list[dict[str, Any]]:
    return [one.told() for one in readable]


def _measured(served: Collections) -> tuple[bytes, str]:
    for one in served.each:
        ITEMS.labels(one.name).set(one.gallery.store.count())
        index = one.steadily(lambda searcher: searcher.gallery.index.stats())
        RECALL.labels(one.name).set(index.recall or math.nan)
    return exposition()
