"""Metrics, request log and request ids: names, labels, workers, and what stays out of them."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Response
from fastapi.staticfiles import StaticFiles
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Receive, Scope, Send

from serving import metrics
from serving.gallery.store import Store
from serving.metrics import FOLDER, REGISTRY, JsonFormatter, Observability, exposition, set_gallery, stage
from tests.serving.running import ROOT, local_client, serving

LABELS = {
    "collection",
    "method",
    "route",
    "status",
    "status_class",
    "stage",
    "code",
    *("version", "python", "fastapi", "onnxruntime", "faiss"),
}
UNITS = ("_seconds", "_bytes", "_ratio", "_info", "_total")
SECRET = {"Authorization": "Bearer key-of-somebody"}


class Chosen:
    """A middleware that puts the collection of the path into the request's state, as authentication does."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/collections/birds"):
            scope["state"]["collection"] = SimpleNamespace(name="birds")
            scope["root_path"] = "/collections/birds"
        await self.app(scope, receive, send)


def create(folder: Path) -> FastAPI:
    """Return an application with a route that answers, one that fails, one that logs, and files."""
    router = APIRouter(prefix="/things")

    @router.get("/{number}")
    def thing(number: int) -> str:
        with stage("find"):
            logging.getLogger("serving.test").warning("thing %d", number)
        return str(1 // number)

    app = FastAPI(telemetry=metrics.TELEMETRY)
    app.include_router(router)
    (folder / "script.js").write_text("1")
    app.mount("/page", StaticFiles(directory=folder))
    return app


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(observed(Chosen(create(tmp_path)), log=True))


def observed(app: ASGIApp, log: bool) -> Observability:
    """Return an application inside the middleware."""
    return Observability(app, log, {"X-Content-Type-Options": "nosniff"}, lambda error: Response(status_code=500))


@pytest.fixture
def lines() -> Iterator[list[dict]]:
    """Collect the lines of the request log, and of the log in JSON."""
    written: list[dict] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(json.loads(self.format(record)))

    handler, loggers = Handler(), [metrics.request_logger, logging.getLogger("serving")]
    handler.setFormatter(JsonFormatter())
    for logger in loggers:
        logger.addHandler(handler)
    yield written
    for logger in loggers:
        logger.removeHandler(handler)


def requests(lines: list[dict]) -> list[dict]:
    return [line for line in lines if "route" in line]


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_one_line_per_request_with_the_id_of_the_answer(client: TestClient, lines: list[dict]) -> None:
    answer = client.get("/things/1?secret=word", headers=SECRET)
    (line,) = requests(lines)
    assert list(line) == ["time", "id", "method", "route", "status", "bytes", "ms"]
    assert line["id"] == answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{16}", line["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
    assert (line["method"], line["route"], line["status"], line["bytes"]) == ("GET", "/things/{number}", 200, 3)
    assert 0 <= line["ms"] < 5000
    assert not re.search("secret|somebody", json.dumps(lines))
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_records_of_a_request_have_its_id_also_from_its_thread(client: TestClient, lines: list[dict]) -> None:
    client.get("/collections/birds/things/1", headers={"X-Request-ID": "mine"})
    record, line = lines
    assert (record["id"], record["level"], record["logger"]) == ("mine", "WARNING", "serving.test")
    assert (record["message"], line["id"], line["collection"]) == ("thing 1", "mine", "birds")


def test_a_plain_id_of_the_client_is_kept(client: TestClient, lines: list[dict]) -> None:
    assert client.get("/things/1", headers={"X-Request-Id": "trace-1.a"}).headers["x-request-id"] == "trace-1.a"
    for bad in ("x" * 65, "a b", '{"a"}', ""):
        assert client.get("/things/1", headers={"X-Request-Id": bad}).headers["x-request-id"] != bad
    assert len(requests(lines)) == 5


def test_a_failure_is_logged_with_its_id_and_traceback(client: TestClient, lines: list[dict]) -> None:
    assert client.get("/things/0", headers={**SECRET, "X-Request-ID": "broken"}).status_code == 500
    client.get("/nowhere")
    (failure,) = [line for line in lines if line.get("level") == "ERROR"]
    assert failure["id"] == "broken"
    assert "ZeroDivisionError" in failure["exception"]
    assert "somebody" not in json.dumps(lines)
    assert [(line["status"], line["route"]) for line in requests(lines)] == [(500, "/things/{number}"), (404, "other")]


def test_without_the_log_there_are_ids_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert TestClient(observed(create(tmp_path), log=False)).get("/things/1").headers["x-request-id"]
    assert "route" not in capfd.readouterr().err


def test_requests_are_counted_by_template_and_never_by_path(client: TestClient) -> None:
    def counts() -> list[float]:
        found = {"collection": "", "method": "GET", "route": "/things/{number}"}
        return [
            value("zoo_requests_total", **found, status="200"),
            value("zoo_request_duration_seconds_count", **found, status_class="2xx"),
            value("zoo_requests_total", **{**found, "collection": "birds"}, status="200"),
            value("zoo_requests_total", **{**found, "route": "/page"}, status="200"),
            value("zoo_requests_total", **{**found, "route": "other"}, status="404"),
            value("zoo_requests_total", collection="", method="POST", route="/things/{number}", status="405"),
            value("zoo_requests_total", collection="", method="other", route="other", status="404"),
            value("zoo_stage_duration_seconds_count", collection="birds", stage="find"),
        ]

    before = counts()
    for path in ("/things/1", "/things/2", "/collections/birds/things/3", "/page/script.js", "/made/up", "/up/1"):
        client.get(path)
    client.post("/things/1")
    client.request("MADEUP", "/made/up")
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [2, 2, 1, 1, 2, 1, 1, 1]
    text, media_type = exposition()
    assert not re.search(rb"(?i)made|up/1|script.js", text)
    assert media_type.startswith("text/plain")
    assert value("zoo_requests_in_progress") == 0


def families() -> list:
    set_gallery("birds", ready=True, items=3)
    return list(text_string_to_metric_families(exposition()[0].decode()))


def test_names_follow_the_conventions_of_prometheus(client: TestClient) -> None:
    """Rules of promtool: a prefix, snake case, base units, `_total` for counters alone, a help text, known labels."""
    client.get("/things/1")
    metrics.count_refusal("busy")
    assert len([family for family in families() if family.name.startswith("zoo_")]) == 11
    for family in families():
        name, samples = family.name, {sample.name for sample in family.samples}
        assert re.fullmatch(r"(zoo|process)(_[a-z0-9]+)+", name), name
        assert not re.search("milli|micro|minute|hour|kilo|percent|count$|bucket|sum$", name), name
        assert family.documentation[0].isupper(), name
        assert family.documentation.endswith("."), name
        assert (family.type == "counter") == any(sample.endswith("_total") for sample in samples), name
        if family.type == "histogram":
            assert name.endswith(UNITS[:2]), name
        if "duration" in name or "time" in name:
            assert name.endswith("_seconds"), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= LABELS, name


def test_versions_and_galleries_are_shown() -> None:
    set_gallery("birds", ready=False, items=3, recall=0.5)
    samples = {sample.name: sample for family in families() for sample in family.samples}
    set_gallery("birds", ready=False)
    assert samples["zoo_build_info"].value == 1
    assert re.fullmatch(r"\d+\.\d+.*", samples["zoo_build_info"].labels["version"])
    assert all(samples["zoo_build_info"].labels.values())
    assert value("zoo_gallery_items", collection="birds") == 3
    assert value("zoo_gallery_ready", collection="birds") == 0
    assert samples["zoo_workers"].value in (0, 1)


WORKER = """
import sys, time
from serving.metrics import IN_PROGRESS, REFUSED, WORKERS
REFUSED.labels("", "invalid_k").inc()
IN_PROGRESS.inc()
WORKERS.set(1)
print("ready", flush=True)
sys.stdin.read()
"""


def worker() -> subprocess.Popen[str]:
    """Start a process that counts one refusal and has one request in progress until its input ends."""
    process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=-1, stdout=-1, text=True, cwd=ROOT)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_workers_are_added_up_and_what_a_dead_one_had_in_progress_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    first, second = worker(), worker()
    try:
        both = exposition()[0].decode()
        end(first)
        one = exposition()[0].decode()
        assert 'zoo_refusals_total{code="invalid_k",collection=""} 2.0' in both
        assert 'zoo_refusals_total{code="invalid_k",collection=""} 2.0' in one
        for name in ("zoo_requests_in_progress", "zoo_workers"):
            assert f"{name} 2.0" in both
            assert f"{name} 1.0" in one
        assert [path.name for path in tmp_path.glob("gauge_live*")] == [f"gauge_livesum_{second.pid}.db"]
        (tmp_path / "counter_1.db").touch()  # of a worker that was killed while it started
        assert exposition()[0]
    finally:
        end(first)
        end(second)


def test_the_sdk_of_opentelemetry_is_not_imported_without_its_variables() -> None:
    """FastAPI imports OpenTelemetry's interface; what makes and sends spans is imported only if it is configured."""
    code = """
import sys
from fastapi import FastAPI
from fastapi.testclient import TestClient
from serving.metrics import TELEMETRY
with TestClient(FastAPI(telemetry=TELEMETRY)) as client:
    assert client.get("/docs").status_code == 200
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "requests"))])
"""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**environment, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def scraped(url: str) -> dict[str, float]:
    """Return the samples of a service by name and labels, as Prometheus reads them."""
    answer = httpx.get(f"{url}/metrics")
    assert answer.status_code == 200, answer.text
    return {
        f"{sample.name}{sorted(sample.labels.items()) or ''}": sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.mark.slow
def test_two_workers_report_their_sums_and_a_restarted_one_counts_once(gallery_folder: Path) -> None:
    with serving(gallery_folder, "--workers", 2) as running:
        for _ in range(10):  # each on a connection of its own
            assert httpx.post(f"{running.url}/search?k=0", content=b"").status_code == 422
        refused = "zoo_refusals_total[('code', 'invalid_k'), ('collection', '')]"
        samples = scraped(running.url)
        assert (samples["zoo_workers"], samples[refused]) == (2, 10)
        assert samples["zoo_gallery_items[('collection', '')]"] == 24
        assert samples["zoo_gallery_ready[('collection', '')]"] == 1
        killed = running.workers()[-1]
        os.kill(killed, signal.SIGKILL)
        end = time.monotonic() + 60
        while True:
            try:
                samples = scraped(running.url)
            except httpx.TransportError:  # the connection was the dead worker's
                continue
            is_restarted = killed not in running.workers() and samples["zoo_workers"] == 2
            if is_restarted and samples["zoo_requests_in_progress"] == 1:
                break
            assert time.monotonic() < end, samples
            time.sleep(0.1)
        assert samples[refused] == 10


@pytest.mark.slow
def test_no_request_creates_a_label_of_its_own(gallery_folder: Path) -> None:
    """Methods, paths, parameters, collections and headers that a client makes up appear in no series."""
    with serving([f"birds={gallery_folder}"]) as running:
        for path in ("/inventedpath", "/collections/inventedname/search", "/collections/birds/items/inventeditem"):
            httpx.get(running.url + path)
        httpx.post(f"{running.url}/collections/birds/search?inventedparameter=1", content=b"inventedbody")
        httpx.post(f"{running.url}/collections/birds/search", json={"inventedkey": {"inventedkey": 1}})
        httpx.get(running.url, headers={"Host": "inventedhost"})
        httpx.request("INVENTED", f"{running.url}/collections/birds/search")
        text = httpx.get(f"{running.url}/metrics").text
    assert "invented" not in text.lower()
    assert 'collection="birds"' in text
    labels = [(name, value) for name, value in re.findall(r'(\w+)="([^"]*)"', text) if name != "le"]
    assert {value for name, value in labels if name == "method"} <= {*metrics.METHODS, "other"}
    assert {value for name, value in labels if name == "collection"} == {"", "birds"}


def test_a_failure_of_the_service_is_json_with_an_id_and_counted_under_its_route(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[dict]
) -> None:
    def fail(store: Store) -> None:
        raise RuntimeError("a secret path")

    failed = {"collection": "", "method": "GET", "route": "/stats", "status": "500"}
    before = value("zoo_requests_total", **failed), value("zoo_refusals_total", collection="", code="internal_error")
    with local_client(gallery_folder) as client:
        monkeypatch.setattr(Store, "stats", fail)
        answer = client.get("/stats", headers={"X-Request-ID": "failure"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert (answer.headers["x-request-id"], answer.headers["x-content-type-options"]) == ("failure", "nosniff")
    assert [line["id"] for line in lines if "a secret path" in line.get("exception", "")] == ["failure"]
    after = value("zoo_requests_total", **failed), value("zoo_refusals_total", collection="", code="internal_error")
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
