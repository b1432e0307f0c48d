"""Traces of a real service, at a collector that speaks OTLP over HTTP on loopback."""

from __future__ import annotations

import gzip
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from serving.metrics import TELEMETRY
from tests.serving import toys
from tests.serving.running import serving

pytestmark = pytest.mark.slow

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, INTERNAL, ERROR = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_INTERNAL, 2


@dataclass
class Collector:
    """Spans that arrived at the collector's URL, and the attributes of their services."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    services: list[dict[str, str]] = field(default_factory=list)

    def add(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services.append({one.key: one.value.string_value for one in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def of(self, request_id: str) -> list[Span]:
        """Return the spans of the request with this id, the request's own one first; wait until they have arrived."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for root in self.spans:
                if attributes(root).get("zoo.request_id") == request_id:
                    inner = [span for span in self.spans if span.parent_span_id == root.span_id]
                    return [root, *sorted(inner, key=lambda span: span.start_time_unix_nano)]
            time.sleep(0.05)
        raise AssertionError(f"no span of {request_id} among {[span.name for span in self.spans]}")


def attributes(span: Span) -> dict[str, str | int]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collected.add(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collected.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield collected
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(collector: Collector, gallery_folder: Path) -> Iterator[str]:
    """Yield the URL of a service that sends its spans soon."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "search-of-a-test",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with serving(gallery_folder, environment=environment) as running:
        yield running.url


def test_a_search_is_a_span_of_the_callers_trace_with_its_stages_inside(url: str, collector: Collector) -> None:
    headers = {"X-Request-ID": "a-search", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    answer = httpx.post(f"{url}/search?k=3&label=green+disc", content=toys.query(2), headers=headers)
    assert answer.status_code == 200, answer.text
    root, *stages = collector.of("a-search")
    assert (root.name, root.kind, root.trace_id.hex()) == ("POST /search", SERVER, TRACE)
    assert root.parent_span_id.hex() == PARENT
    found = attributes(root)
    assert (found["http.route"], found["http.request.method"], found["http.response.status_code"]) == (
        "/search",
        "POST",
        200,
    )
    assert (found["url.path"], found["url.query"]) == ("/search", "REDACTED")
    assert [span.name for span in stages] == ["read", "queue", "decode", "embed", "find"]
    for span in stages:
        assert span.kind == INTERNAL
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    assert {one["service.name"] for one in collector.services} == {"search-of-a-test"}


def test_spans_are_named_by_template_and_hold_no_query(url: str, collector: Collector) -> None:
    for number, path in enumerate(["/items/1", "/items/999", "/made/up", "/items?label=secret"]):
        httpx.get(url + path, headers={"X-Request-ID": f"read-{number}"})
    roots = [collector.of(f"read-{number}")[0] for number in range(4)]
    assert [root.name for root in roots] == ["GET /items/{id}", "GET /items/{id}", "GET", "GET /items"]
    assert [attributes(root)["http.response.status_code"] for root in roots] == [200, 404, 404, 200]
    assert "secret" not in str(roots)


def test_probes_and_prometheus_are_not_traced(url: str, collector: Collector) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/model"):
        httpx.get(url + path, headers={"X-Request-ID": path.strip("/")})
    collector.of("model")
    assert not {attributes(span).get("url.path") for span in collector.spans} & {"/livez", "/readyz", "/metrics"}
    is_excluded = TELEMETRY["exclude"]
    assert all(is_excluded({"path": f"/collections/birds{path}"}) for path in ("/livez", "/readyz"))
    assert not is_excluded({"path": "/collections/birds/search"})


def test_the_log_of_a_traced_request_names_its_trace(collector: Collector, gallery_folder: Path) -> None:
    """The last spans are sent when the service stops."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    galleries, options = [f"birds={gallery_folder}"], ("--log-requests", 1)
    with serving(galleries, *options, stderr=subprocess.PIPE, environment=environment) as running:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "logged"}
        httpx.get(f"{running.url}/collections/birds/model", headers=headers)
        running.stop()
        assert running.process.stderr
        assert f'"trace_id": "{TRACE}"' in running.process.stderr.read()
    (root,) = collector.of("logged")
    assert (root.name, attributes(root)["zoo.collection"]) == ("GET /model", "birds")


def test_tracing_can_be_switched_off(collector: Collector, gallery_folder: Path) -> None:
    for switch in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **switch}
        with serving(gallery_folder, environment=environment) as running:
            httpx.get(f"{running.url}/model", headers={"X-Request-ID": "untraced"})
            running.stop()
    assert "untraced" not in {attributes(span).get("zoo.request_id") for span in collector.spans}
