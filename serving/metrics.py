"""What the service tells Prometheus at /metrics.

The series have few labels and those few values: no path and no name that a client could make up becomes one. With
several workers each counts into a file of the folder in PROMETHEUS_MULTIPROC_DIR, which prometheus_client adds up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SCOPE = "collection"
"""Under which a request's ASGI scope holds the collection that it is about, and the label with that one's name: ""
where it has none, which to Prometheus is no label.
"""
CURRENT: ContextVar[str] = ContextVar(SCOPE, default="")
"""That name, for what is counted where no request is at hand; threads that work for a request have it too."""
STAGES = ("read", "queue", "decode", "embed", "find", "write")
"""queue: from asking for a core to having one."""
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

REGISTRY = CollectorRegistry()
REQUESTS = Counter(
    "zoo_requests", "Requests by collection, route and status", (SCOPE, "route", "status"), registry=REGISTRY
)
LATENCY = Histogram(
    "zoo_request_seconds", "From the first byte to the last", (SCOPE, "route"), buckets=_SECONDS, registry=REGISTRY
)
STAGE = Histogram("zoo_stage_seconds", "Time within a request", (SCOPE, "stage"), buckets=_SECONDS, registry=REGISTRY)
REFUSED = Counter("zoo_refused", "Requests refused by collection and code", (SCOPE, "code"), registry=REGISTRY)
UNDER_WAY = Gauge("zoo_requests_under_way", "Requests inside now", registry=REGISTRY, multiprocess_mode="livesum")
WAITING = Gauge("zoo_queue_waiting", "Images that wait for a core", registry=REGISTRY, multiprocess_mode="livesum")
ITEMS = Gauge("zoo_gallery_items", "Items of the gallery", (SCOPE,), registry=REGISTRY, multiprocess_mode="mostrecent")
RECALL = Gauge(
    "zoo_index_recall", "Recall of the index against exact search, as last measured; NaN if never", (SCOPE,),
    registry=REGISTRY, multiprocess_mode="mostrecent",
)  # fmt: skip


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time of the block as that stage's."""
    started = time.perf_counter()
    try:
        yield
    finally:
        STAGE.labels(CURRENT.get(), name).observe(time.perf_counter() - started)


class Measured:
    """ASGI middleware: counts every request under the route that answered it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        UNDER_WAY.inc()
        try:
            await self.app(scope, receive, noted)
        finally:
            UNDER_WAY.dec()
            name, route = collection_in(scope), route_of(scope)
            REQUESTS.labels(name, route, str(status)).inc()
            LATENCY.labels(name, route).observe(time.perf_counter() - started)


def route_of(scope: Scope) -> str:
    """The pattern that the path met, as "/items/{id}"; "other" where it met none, or was refused before."""
    endpoint, routes = scope.get("endpoint"), getattr(scope.get("app"), "routes", ())
    met = (route for route in routes if endpoint and getattr(route, "endpoint", None) is endpoint)
    return str(getattr(next(met, None), "path", "other"))


def collection_in(scope: Scope) -> str:
    """The name of the collection that a request is about; "" where there is none."""
    found = scope.get(SCOPE)
    return found.name if found else ""


class _OfWorkers(MultiProcessCollector):
    """Passes over empty files: of a worker that has just begun, or was killed as it did, which are no error."""

    def collect(self) -> Iterable[Metric]:
        begun = [str(path) for path in Path(self._path).glob("*.db") if _size(path)]
        merged: Iterable[Metric] = self.merge(begun, accumulate=True)
        return merged


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # those of what is under way go with their worker
        return 0


def exposition() -> tuple[bytes, str]:
    """The text of /metrics and its content type."""
    registry = REGISTRY
    if os.environ.get(FOLDER):
        registry = CollectorRegistry()
        _OfWorkers(registry)
    return generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8"
