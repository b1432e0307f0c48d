"""The REST paths and the web page, as a Starlette application over the service's collections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving import evaluating, feedback, labels, reading, searching, whole, writing
from serving.collection import FOLDER
from serving.collections import Chosen, Collections
from serving.configuration import Configuration
from serving.cores import Cores
from serving.hosts import KeptPrivate, KnownHosts
from serving.journal import Journal, to_stderr
from serving.keys import KeyGuard, Keys, client_of
from serving.limits import AnswerDeadline, BodyDeadline, BrokenOff, ConcurrencyLimit, RateLimit
from serving.metrics import SCOPE, Measured
from serving.openapi import document
from serving.paths import looks_at_every_item, needs_a_core, takes_minutes
from serving.refusals import HANDLERS
from serving.uploads import BodyLimit

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


def create_app(
    collections: Collections, configuration: Configuration | None = None, hosts: Sequence[str] = ()
) -> ASGIApp:
    """The application. `hosts`: names that it answers to besides loopback's.

    Collections are opened at their first request, so that it can be made before them.
    """
    configuration = configuration or Configuration()
    share = configuration.share()
    # Decoding and embedding keep a core busy: more of them at once than cores only makes all of them late.
    cores = Cores(share.cores)

    def routed(routes: Sequence[BaseRoute]) -> Starlette:
        app = Starlette(routes=routes, exception_handlers=HANDLERS)
        app.state.collections, app.state.configuration, app.state.cores = collections, configuration, cores
        return app

    at_root, named = routed(SERVICE + (ROUTES if collections.root else FRONT)), routed(ROUTES)
    in_time = BodyDeadline(_Either(at_root, named), configuration.body_seconds)
    inside = BodyLimit(in_time, configuration.max_body + FORM_BYTES)
    answered = AnswerDeadline(inside, configuration.answer_seconds, takes_minutes)

    def is_behind(scope: Scope) -> bool:
        return needs_a_core(scope) and cores.is_behind(configuration.queue_seconds)

    limited = ConcurrencyLimit(answered, share.concurrency, looks_at_every_item, is_behind)
    guarded: ASGIApp = Chosen(KeyGuard(limited, _keys_of), collections)
    if share.rate:  # before any key is looked at, so that guessing keys has its limit too
        client = partial(client_of, is_known=collections.knows)
        guarded = RateLimit(guarded, share.rate, share.burst, client, of_all=configuration.rate)
    known: ASGIApp = KnownHosts(guarded, hosts)
    if not collections.are_guarded:
        known = KeptPrivate(known)
    return SecurityHeaders(Journal(Measured(BrokenOff(known)), to_stderr if configuration.log_requests else None))


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


class _Either:
    """One application at the service's root, another for the collections that have names."""

    def __init__(self, at_root: ASGIApp, named: ASGIApp) -> None:
        self.at_root, self.named = at_root, named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        collection = scope.get(SCOPE)
        await (self.named if collection and collection.name else self.at_root)(scope, receive, send)


def _keys_of(scope: Scope) -> Keys | None:
    collection = scope[SCOPE]
    return collection.keys if collection else None


async def _openapi(request: Request) -> Response:
    collection, max_k = request.scope[SCOPE], request.app.state.configuration.max_k
    return JSONResponse(document(max_k, collection.path if collection else None))


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return FileResponse(PAGE / name, headers={"Cache-Control": "no-cache"})

    return respond


ROUTES: list[BaseRoute] = [
    Route("/", _file("index.html")),
    Route("/docs", _file("docs.html")),
    Route("/openapi.json", _openapi),
    Route("/livez", reading.alive),
    Route("/readyz", reading.ready),
    Route("/model", reading.model),
    Route("/stats", reading.stats),
    Route("/labels", labels.show),
    Route("/metadata", labels.metadata),
    Route("/map", reading.plane),
    Route("/search", searching.search, methods=["POST"]),
    Route("/embed", searching.embed, methods=["POST"]),
    Route("/evaluate", evaluating.last),
    Route("/evaluate", evaluating.measure, methods=["POST"]),
    Route("/feedback", feedback.show),
    Route("/feedback", feedback.mark, methods=["POST"]),
    Route("/feedback/{id}", feedback.undo, methods=["DELETE"]),
    Route("/items", reading.items),
    Route("/items", writing.add, methods=["POST"]),
    Route("/items/{id}", reading.item),
    Route("/items/{id}", writing.describe, methods=["PATCH"]),
    Route("/items/{id}", writing.remove, methods=["DELETE"]),
    Route("/items/{id}/thumbnail", reading.thumbnail),
    Mount("/page", StaticFiles(directory=PAGE)),
]
"""Of a collection: at the service's root, or under /collections/NAME."""
SERVICE: list[BaseRoute] = [Route(FOLDER, whole.collections), Route("/metrics", whole.metrics)]
FRONT: list[BaseRoute] = [
    Route("/", whole.front),
    Route("/docs", _file("docs.html")),
    Route("/openapi.json", _openapi),
    Mount("/page", StaticFiles(directory=PAGE)),
    Route("/{path:path}", whole.elsewhere, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
]
"""At the root of a service whose collections have names."""
