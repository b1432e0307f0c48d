from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from serving.journal import Journal
from serving.metrics import FOLDER, REGISTRY, Measured, exposition


async def _item(request) -> PlainTextResponse:
    if request.path_params["id"] == "0":
        raise RuntimeError
    return PlainTextResponse("inside")


def client(lines: list[str]) -> TestClient:
    app = Starlette(routes=[Route("/things/{id}", _item)])
    return TestClient(Journal(Measured(app), lines.append), raise_server_exceptions=False)


def test_a_line_a_request_with_the_id_of_the_answer():
    lines: list[str] = []
    answer = client(lines).get("/things/17?secret=word", headers={"Authorization": "Bearer key-of-somebody"})
    said = json.loads(lines[0])
    assert said["id"] == answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{16}", said["id"])
    assert (said["method"], said["route"], said["status"], said["bytes"]) == ("GET", "/things/{id}", 200, 6)
    assert 0 <= said["ms"] < 5000
    assert not re.search("secret|somebody|17", lines[0].replace(said["id"], "").replace(said["time"], ""))


def test_an_id_of_the_clients_is_kept_where_it_is_plain():
    lines: list[str] = []
    service = client(lines)
    assert service.get("/things/1", headers={"X-Request-Id": "trace-1.a"}).headers["x-request-id"] == "trace-1.a"
    for bad in ("x" * 65, "a b", '{"a"}', ""):
        assert service.get("/things/1", headers={"X-Request-Id": bad}).headers["x-request-id"] != bad
    assert len(lines) == 5


def test_failures_are_lines_too_and_the_log_says_why_of_which_request(caplog: pytest.LogCaptureFixture):
    lines: list[str] = []
    failed = client(lines).get("/things/0", headers={"Authorization": "Bearer key-of-somebody"})
    (record,) = caplog.records
    assert failed.headers["x-request-id"] in record.getMessage()
    assert "RuntimeError" in caplog.text
    assert "somebody" not in caplog.text
    client(lines).get("/nowhere")
    assert len(caplog.records) == 1
    assert [(json.loads(line)["status"], json.loads(line)["route"]) for line in lines] == [
        (500, "/things/{id}"),
        (404, "other"),
    ]


def count(route: str, status: str) -> float:
    return REGISTRY.get_sample_value("zoo_requests_total", {"collection": "", "route": route, "status": status}) or 0.0


def test_requests_are_counted_by_route_and_never_by_path():
    service = client([])
    before = count("/things/{id}", "200"), count("other", "404")
    for path in ("/things/a", "/things/b", "/made/up/1", "/made/up/2", "/made/up/3"):
        service.get(path)
    assert (count("/things/{id}", "200") - before[0], count("other", "404") - before[1]) == (2, 3)
    text, media_type = exposition()
    assert b'zoo_requests_total{collection="",route="/things/{id}",status="200"}' in text
    assert b"made" not in text
    assert media_type.startswith("text/plain")
    assert REGISTRY.get_sample_value("zoo_requests_under_way") == 0


def test_a_worker_that_was_killed_as_it_began_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It leaves an empty file; what the others have counted is told all the same."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    one = "from serving.metrics import REFUSED; REFUSED.labels('', 'invalid_k').inc()"
    subprocess.run([sys.executable, "-c", one], check=True, timeout=60)
    assert list(tmp_path.glob("counter_*.db"))
    (tmp_path / "counter_1.db").touch()
    assert b'zoo_refused_total{code="invalid_k",collection=""} 1.0' in exposition()[0]
