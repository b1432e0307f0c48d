"""The REST paths and the web page, as a Starlette application over a `Searcher`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving import evaluating, labels, projection, searching, writing
from serving.access import Access
from serving.answers import item_json
from serving.calibrating import calibration_of
from serving.configuration import Configuration
from serving.hosts import KnownHosts
from serving.journal import Journal, to_stderr
from serving.keys import KeyGuard, client_of
from serving.limits import BodyDeadline, ConcurrencyLimit, RateLimit
from serving.metrics import ITEMS, RECALL, Measured, exposition
from serving.openapi import MAX_LIMIT, document
from serving.refusals import HANDLERS
from serving.searcher import Searcher
from serving.uploads import BodyLimit, item_id, whole_number

PAGE = Path(__file__).parent / "page"
FORM_BYTES = 64 * 2**10
"""What a multipart form may add to its images: boundaries and small fields."""

_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]

T = TypeVar("T")


def create_app(
    searcher: Callable[[], Searcher], configuration: Configuration | None = None, access: Access | None = None
) -> ASGIApp:
    """The application. `searcher` is asked for at each request, so that the app can be made before it is opened."""
    configuration, access = configuration or Configuration(), access or Access()
    app = Starlette(routes=ROUTES, exception_handlers=HANDLERS)
    app.state.searcher = searcher
    app.state.configuration, app.state.atlas = configuration, projection.Atlas()
    # Decoding and embedding keep a core busy: more of them at once than cores only makes all of them late.
    app.state.cores = CapacityLimiter(len(os.sched_getaffinity(0)))
    inside = BodyLimit(BodyDeadline(app, configuration.body_seconds), configuration.max_body + FORM_BYTES)
    limited: ASGIApp = ConcurrencyLimit(inside, configuration.concurrency)
    if configuration.rate:
        limited = RateLimit(limited, configuration.rate, configuration.burst, client_of)
    guarded = KnownHosts(KeyGuard(limited, access.keys), access.hosts)
    return SecurityHeaders(Journal(Measured(guarded), to_stderr if configuration.log_requests else None))


class SecurityHeaders:
    """ASGI middleware: nothing from elsewhere runs on the page, and no response is taken for another type."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_RAW_HEADERS]}
            await send(message)

        await self.app(scope, receive, with_headers)


async def _items(request: Request) -> Response:
    values = request.query_params
    gallery = _searcher(request).gallery
    limit = whole_number(values, "limit", 50, 1, MAX_LIMIT)
    if "sample" in values:
        items = await _run(lambda: gallery.sample(whole_number(values, "sample", 24, 1, MAX_LIMIT)))
        return JSONResponse({"total": await _run(gallery.count), "items": [item_json(item) for item in items]})
    offset, label = whole_number(values, "offset", 0, 0, 10**15 - 1), values.get("label")
    items = await _run(lambda: gallery.items(offset, limit, label))
    total = await _run(lambda: gallery.count(label))
    rows = [item_json(item) for item in items]
    return JSONResponse({"total": total, "offset": offset, "limit": limit, "items": rows})


async def _item(request: Request) -> Response:
    wanted = item_id(request.path_params["id"])
    return JSONResponse(item_json(await _run(lambda: _searcher(request).gallery.item(wanted))))


async def _thumbnail(request: Request) -> Response:
    wanted, gallery = item_id(request.path_params["id"]), _searcher(request).gallery
    item = await _run(lambda: gallery.item(wanted))
    # Another gallery may be served at this address tomorrow, so the browser asks each time.
    headers = {"ETag": f'"{item.content_sha256}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    thumbnail = await _run(lambda: gallery.thumbnail(wanted))
    return Response(thumbnail.data, media_type=thumbnail.media_type, headers=headers)


async def _model(request: Request) -> Response:
    searcher = _searcher(request)
    embedder, card = searcher.embedder, searcher.embedder.card
    stats = await _run(searcher.gallery.stats)
    body = {
        **{key: getattr(card, key) for key in ("name", "method", "backbone", "dataset", "dim", "licence")},
        "fingerprint": card.fingerprint,
        "preprocessing": dataclasses.asdict(card.preprocessing),
        **{key: getattr(embedder, key) for key in ("runtime", "precision", "device")},
        "gallery": dataclasses.asdict(stats),
        "limits": dataclasses.asdict(searcher.limits),
    }
    return JSONResponse(body)


async def _stats(request: Request) -> Response:
    gallery = _searcher(request).gallery
    stats, index = await _run(gallery.stats), await _run(gallery.index_stats)
    calibration = await _run(lambda: calibration_of(gallery))
    body = {
        **dataclasses.asdict(stats),
        "index": dataclasses.asdict(index),
        "calibration": None if calibration is None else calibration.to_json(),
    }
    return JSONResponse(body)


async def _metrics(request: Request) -> Response:
    gallery = _searcher(request).gallery
    ITEMS.set(await _run(gallery.count))
    RECALL.set((await _run(gallery.index_stats)).recall or math.nan)
    text, media_type = await _run(exposition)
    return Response(text, headers={"content-type": media_type, "Cache-Control": "no-store"})


async def _openapi(request: Request) -> Response:
    return JSONResponse(document(request.app.state.configuration.max_k))


def _file(name: str) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        return FileResponse(PAGE / name, headers={"Cache-Control": "no-cache"})

    return respond


async def _run(read: Callable[[], T]) -> T:
    """Reads of the gallery wait for the disk: in a thread, not on the event loop."""
    return await to_thread.run_sync(read)


def _searcher(request: Request) -> Searcher:
    searcher: Searcher = request.app.state.searcher()
    return searcher


ROUTES = [
    Route("/", _file("index.html")),
    Route("/docs", _file("docs.html")),
    Route("/openapi.json", _openapi),
    Route("/metrics", _metrics),
    Route("/model", _model),
    Route("/stats", _stats),
    Route("/labels", labels.show),
    Route("/map", projection.show),
    Route("/search", searching.search, methods=["POST"]),
    Route("/embed", searching.embed, methods=["POST"]),
    Route("/evaluate", evaluating.last),
    Route("/evaluate", evaluating.measure, methods=["POST"]),
    Route("/items", _items),
    Route("/items", writing.add, methods=["POST"]),
    Route("/items/{id}", _item),
    Route("/items/{id}", writing.describe, methods=["PATCH"]),
    Route("/items/{id}", writing.remove, methods=["DELETE"]),
    Route("/items/{id}/thumbnail", _thumbnail),
    Mount("/page", StaticFiles(directory=PAGE)),
]
