"""The FastAPI application: routers, middleware, and what happens when it starts and stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.config import STARTUP_FAILURE

from serving import errors
from serving.auth import ANY_HOST, Authentication, TrustedHosts
from serving.dependencies import KNOWN_PARAMETERS, Collections
from serving.limits import CpuQueue, Deadlines, RequestLimits
from serving.metrics import TELEMETRY, Observability
from serving.openapi import openapi
from serving.routes import bulk, embed, evaluate, items, keys, openai, search, status
from serving.settings import Settings
from zoo.data import decoder_pool
from zoo.errors import UsageError

PAGE = Path(__file__).parent / "page"
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


FRESH = {"Cache-Control": "no-cache"}


def create_app(settings: Settings | None = None, collections: Collections | None = None) -> FastAPI:
    """Return the application. Galleries are opened when it starts, or at their first request.

    Args:
        settings: The settings of the service (default: those of the environment).
        collections: The collections to serve (default: those of the settings).

    Raises:
        UsageError: If a setting is wrong.
        SystemExit: If a setting of the environment is wrong. uvicorn would show a traceback of any other error, and
            start its workers again and again.
    """
    try:
        chosen = settings or Settings.load()
        collections = collections or Collections.load(chosen)
    except UsageError as error:
        if settings is not None:
            raise
        print(f"zoo: error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(STARTUP_FAILURE) from None
    return _app(chosen, collections)


def _app(settings: Settings, collections: Collections) -> FastAPI:
    logging.getLogger("uvicorn.access").disabled = True  # it would show query strings; Observability logs requests
    cpu_queue, has_keys = CpuQueue(settings.share().cores), collections.are_guarded
    hosts = settings.hosts or (ANY_HOST if has_keys else "")
    app: FastAPI = FastAPI(
        title="dml-zoo",
        summary="Image search over galleries that were embedded by metric learning models.",
        version=version("dml-zoo"),
        description='Every refusal is JSON of one shape: {"error": {"code", "message"}}; below /v1, of the shape of '
        "OpenAI's API. Requests to a host name that the service does not have are refused with 421.",
        openapi_url=None,  # serving.openapi sends the document, which depends on the collection
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would repeat any Host header of a request
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        telemetry=TELEMETRY,
        middleware=[
            *_cross_origin(settings),
            Middleware(
                Observability, log=bool(settings.log_requests), headers=SECURITY_HEADERS, failure=errors.error_response
            ),
            Middleware(TrustedHosts, hosts=hosts, has_keys=has_keys, origins=settings.allowed_origins),
            Middleware(RequestLimits, settings=settings, cpu_queue=cpu_queue, is_known=collections.knows),
            Middleware(Authentication, collections=collections, is_routed=lambda scope: errors.is_routed(app, scope)),
            Middleware(
                Deadlines,
                body_seconds=settings.body_seconds,
                answer_seconds=settings.answer_seconds,
                is_draining=lambda: app.state.draining,
            ),
        ],
    )
    app.state.settings, app.state.collections, app.state.cpu_queue = settings, collections, cpu_queue
    app.state.share, app.state.draining = settings.share(), False
    errors.install(app)
    of_galleries = (search, bulk, keys, items, evaluate, status) if collections.have_galleries else ()
    for module in (*of_galleries, embed, openai):
        app.include_router(module.router, dependencies=[KNOWN_PARAMETERS])
    app.include_router(status.service, dependencies=[KNOWN_PARAMETERS])
    app.include_router(status.probes)
    app.add_api_route("/", page, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.mount("/page", _PageFiles(directory=PAGE))
    return app


def _cross_origin(settings: Settings) -> list[Middleware]:
    """Return the middleware that lets browsers show answers to the pages of allowed origins, failures among them."""
    if not settings.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=errors.METHODS,
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Model", "X-Model-Fingerprint", "X-Request-ID"],
        )
    ]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the galleries, and close them when the server has stopped."""
    await to_thread.run_sync(app.state.collections.open)
    freeze_objects()
    with suppress(asyncio.CancelledError):  # uvicorn cancels this at a second Ctrl-C
        yield
    decoder_pool.close()  # threads that wait for an image end with it
    await to_thread.run_sync(app.state.collections.close)


def freeze_objects() -> None:
    """Exempt all present objects from garbage collection, whose long pauses would show in the slowest answers."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def page(request: Request) -> Response:
    """Send the page of a collection, or lead from the service's root to the first collection without read keys.

    If all have read keys, the page asks for one, and leads to a collection that it may read.
    """
    collections: Collections = request.app.state.collections
    first = next((collection for collection in collections.all if not collection.keys.read), None)
    if not collections.have_galleries:
        return RedirectResponse("docs")
    if collections.root is None and first is not None and not request.state.prefix:
        return RedirectResponse(f"{first.path.lstrip('/')}/")
    return _file("index.html")


async def docs() -> Response:
    """Send the page that shows every path and its answers, read from /openapi.json."""
    return _file("docs.html")


def _file(name: str) -> FileResponse:
    return FileResponse(PAGE / name, headers=FRESH)


class _PageFiles(StaticFiles):
    """Files of the page, which a browser keeps and asks whether they have changed."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return the answer with a file."""
        response = super().file_response(*args, **options)
        response.headers.update(FRESH)
        return response
