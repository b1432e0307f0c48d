"""Observability of the service: Prometheus metrics, request log, request ids and OpenTelemetry traces.

Label values are bounded: a client cannot create a series. With several workers, each process counts in files of the
folder PROMETHEUS_MULTIPROC_DIR, and any of them reports the sums. Traces are FastAPI's own (`TELEMETRY`), with the
stages of a request as inner spans.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.datastructures import Headers
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("serving.requests")

REQUEST: ContextVar[Scope | None] = ContextVar("request", default=None)
"""The ASGI scope of the current request; threads that work for a request inherit it."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The ids that a client may choose with X-Request-ID."""
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the histograms' buckets."""
TELEMETRY: TelemetryConfig = {
    "auto_configure": True,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "exclude": lambda scope: scope.get("path", "").rpartition("/")[2] in ("livez", "readyz", "metrics"),
}
"""For FastAPI: it traces requests if OTEL_EXPORTER_OTLP_ENDPOINT is set, apart from those of probes and Prometheus."""

disable_created_metrics()  # a second series for each counter and histogram, which nobody reads
REGISTRY = CollectorRegistry()
_live = partial(Gauge, registry=REGISTRY, multiprocess_mode="livesum")
_latest = partial(Gauge, registry=REGISTRY, multiprocess_mode="mostrecent")
_histogram = partial(Histogram, registry=REGISTRY, buckets=SECONDS)
_counter = partial(Counter, registry=REGISTRY)

REQUESTS = _counter(
    "zoo_requests_total", "HTTP requests that were answered.", ("collection", "method", "route", "status")
)
DURATION = _histogram(
    "zoo_request_duration_seconds",
    "Time from the start of a request to the end of its answer.",
    ("collection", "method", "route", "status_class"),
)
STAGE = _histogram(
    "zoo_stage_duration_seconds",
    "Time in one stage of a request: read (its body), queue (for a core), decode, embed, find, write.",
    ("collection", "stage"),
)
REFUSED = _counter("zoo_refusals_total", "Requests that were refused, by error code.", ("collection", "code"))
IN_PROGRESS = _live("zoo_requests_in_progress", "HTTP requests in progress.")
WAITING = _live("zoo_cpu_queue_length", "Images and texts that wait for a core.")
WORKERS = _live("zoo_workers", "Processes that answer requests.")
READY = _latest("zoo_gallery_ready", "Whether the gallery can be searched (1) or not (0).", ("collection",))
ITEMS = _latest("zoo_gallery_items", "Items of the gallery.", ("collection",))
RECALL = _latest(
    "zoo_gallery_index_recall_ratio",
    "Recall of the index against exact search at its last measurement; NaN before the first one.",
    ("collection",),
)
BUILD = _latest(
    "zoo_build_info",
    "Versions of the service and of its libraries; the value is 1.",
    ("version", "python", "fastapi", "onnxruntime", "faiss"),
)
ProcessCollector(registry=REGISTRY)


def _collection_name() -> str:
    """Return the name of the current request's collection; "" if it has none, or outside requests."""
    scope = REQUEST.get()
    return _collection(scope) if scope else ""


def request_id() -> str | None:
    """Return the id of the current request; None outside requests."""
    scope = REQUEST.get()
    return scope["state"]["request_id"] if scope else None


def _span(name: str) -> AbstractContextManager[Any]:
    """Return a context manager: a span inside the current one, if that is recorded."""
    if not trace.get_current_span().is_recording():
        return nullcontext()
    return trace.get_tracer("serving").start_as_current_span(name)


def _trace_id() -> str | None:
    """Return the id of the current trace if it is sent, otherwise None."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else None


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Measure the block as a stage of the current request: in `zoo_stage_duration_seconds` and as a span."""
    start = time.perf_counter()
    try:
        with _span(name):
            yield
    finally:
        STAGE.labels(_collection_name(), name).observe(time.perf_counter() - start)


def count_refusal(code: str) -> None:
    """Count a refusal of the current request.

    Args:
        code: The error code of the answer. It must come from the code of the service, not from a request.
    """
    REFUSED.labels(_collection_name(), code).inc()


def set_gallery(collection: str, ready: bool, items: int | None = None, recall: float | None = None) -> None:
    """Set the gauges of one gallery.

    Args:
        collection: The collection's name, "" for a gallery without one.
        ready: Whether it can be searched.
        items: The number of its items; None leaves the last number.
        recall: The last measured recall of its index; None if it was never measured.
    """
    READY.labels(collection).set(ready)
    if items is not None:
        ITEMS.labels(collection).set(items)
    RECALL.labels(collection).set(math.nan if recall is None else recall)


class Observability:
    """ASGI middleware that gives every request an id, counts it and logs it, and answers failures."""

    def __init__(
        self, app: ASGIApp, log: bool, headers: Mapping[str, str], failure: Callable[[Exception], ASGIApp]
    ) -> None:
        """Initialise the middleware.

        Args:
            app: The application inside.
            log: Whether each request writes one line of JSON to stderr.
            headers: Headers that every answer gets.
            failure: Function that returns the answer to an exception that the application did not handle.
        """
        self.app, self.log, self.failure = app, log, failure
        self.headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if log:
            handler = logging.StreamHandler()
            handler.setFormatter(JsonFormatter())
            request_logger.handlers, request_logger.propagate = [handler], False
            request_logger.setLevel(logging.INFO)
        WORKERS.set(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = identity
        # Texts and filters of a search are private.
        query = {"url.query": "REDACTED"} if scope.get("query_string") else {}
        trace.get_current_span().set_attributes({"zoo.request_id": identity, **query})
        token, answer = REQUEST.set(scope), _CountedAnswer(send, [*self.headers, (b"x-request-id", identity.encode())])
        start = time.perf_counter()
        with IN_PROGRESS.track_inprogress():
            try:
                await self.app(scope, receive, answer.send)
            except Exception as error:
                logger.exception("request %s failed: %s %s", identity, scope["method"], _route_of(scope))
                trace.get_current_span().record_exception(error)
                if not answer.started:
                    await self.failure(error)(scope, receive, answer.send)
            finally:
                self._record(scope, answer, time.perf_counter() - start)
                REQUEST.reset(token)

    def _record(self, scope: Scope, answer: _CountedAnswer, seconds: float) -> None:
        name, route, status = _collection(scope), _route_of(scope), answer.status
        method = _method_of(scope)
        REQUESTS.labels(name, method, route, str(status)).inc()
        DURATION.labels(name, method, route, f"{status // 100}xx").observe(seconds)
        if self.log:
            line = {"method": scope["method"], "collection": name, "route": route, "status": status}
            line |= {"bytes": answer.bytes, "ms": round(1000 * seconds, 1)}
            request_logger.info({key: value for key, value in line.items() if value != ""})


@dataclass
class _CountedAnswer:
    """The answer to one request on its way out: it gets headers, and its status and bytes are noted.

    No cache keeps it, unless it says so itself: answers depend on keys, and change with the gallery.
    """

    forward: Send
    headers: list[tuple[bytes, bytes]]
    status: int = 500
    bytes: int = 0
    started: bool = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            if name := _collection_name():
                trace.get_current_span().set_attribute("zoo.collection", name)
            own = [*message.get("headers", ())]
            # Of policies for contents all hold; of other headers that of the answer itself.
            named = {name for name, _ in own} - {b"content-security-policy"}
            headers = [*own, *((name, value) for name, value in self.headers if name not in named)]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self.forward(message)


def _method_of(scope: Scope) -> str:
    """Return the method of a request; "other" for one that HTTP does not define."""
    return scope["method"] if scope["method"] in METHODS else "other"


def _route_of(scope: Scope) -> str:
    """Return the template of the route that the path matched; "other" if it matched none or was refused earlier."""
    if isinstance(scope.get("endpoint"), StaticFiles):
        return "/page"
    route = scope.get("route")
    return str(getattr(route, "path_format", getattr(route, "path", "other")))


def _collection(scope: Scope) -> str:
    return str(getattr(scope["state"].get("collection"), "name", ""))


class JsonFormatter(logging.Formatter):
    """One line of JSON per log record, with the id of the request that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A message that is a dictionary gives the fields of the line."""
        line: dict[str, Any] = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")}
        if identity := request_id():
            line["id"] = identity
        if trace_id := _trace_id():
            line["trace_id"] = trace_id
        if isinstance(record.msg, dict):
            return json.dumps({**line, **record.msg})
        line |= {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(as_json: bool) -> None:
    """Write the log of the process to stderr: warnings of all libraries, and what the service itself reports."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("serving").setLevel(logging.INFO)


class _WorkerSums(MultiProcessCollector):
    """The sums over all workers; live gauges of workers that ended are removed."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        files = [path for path in Path(self._path).glob("*.db") if not _is_stale(path)]
        return self.merge(list(map(str, files)), accumulate=True)


def _is_stale(path: Path) -> bool:
    """Return whether to ignore a file: it is empty (its worker just started), or a live gauge of a dead process."""
    if path.name.startswith("gauge_live") and not _is_alive(int(path.stem.rpartition("_")[2])):
        path.unlink(missing_ok=True)
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def exposition() -> tuple[bytes, str]:
    """Return the text of /metrics and its content type."""
    engines = _version("onnxruntime", "onnxruntime-gpu"), _version("faiss-cpu", "faiss-gpu-cu12")
    BUILD.labels(_version("dml-zoo"), platform.python_version(), _version("fastapi"), *engines).set(1)
    registry = REGISTRY
    if os.environ.get(FOLDER):
        registry = CollectorRegistry()
        _WorkerSums(registry)
    return generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8"


def _version(*distributions: str) -> str:
    """Return the version of the first distribution that is installed; "" without any."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
