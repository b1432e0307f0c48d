from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from serving.app import SECURITY_HEADERS, create_app
from serving.gallery.search import Searcher
from serving.settings import GALLERY
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import ROOT, Running, app_over, local_client, serving
from zoo.errors import UsageError

READER = "k" * 20


def test_pages_load_nothing_from_elsewhere(gallery_folder: Path) -> None:
    with local_client(gallery_folder) as client:
        for path in ("/", "/docs"):
            answer = client.get(path)
            assert answer.headers["content-type"].startswith("text/html")
            assert "http://" not in answer.text.replace("http://www.w3.org", "")
            assert "https://" not in answer.text
            assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert client.get("/page/style.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/page/",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/docs.json",
        "/redoc",
        "/items/1/x",
    ],
)
def test_unknown_paths_are_refused_in_json(gallery_folder: Path, path: str) -> None:
    with local_client(gallery_folder) as client:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_head_is_answered_like_get(server: Running) -> None:
    with httpx.Client(base_url=server.url) as client:
        for path, status in (("/livez", 200), ("/items", 200), ("/items/2/thumbnail", 200), ("/items/99", 404)):
            answer, expected = client.head(path), client.get(path)
            assert (answer.status_code, answer.content) == (status, b"")
            assert answer.headers["content-length"] == expected.headers["content-length"]
        assert client.head("/search").status_code == 405


def test_the_root_of_named_galleries_leads_to_the_first(gallery_folder: Path) -> None:
    with local_client([f"birds={gallery_folder}", f"cars={gallery_folder}"]) as client:
        answer = client.get("/", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, "collections/birds/")
        page = client.get("/collections/birds/").text
        assert page == client.get("/collections/cars/").text
        assert client.get("/collections/birds", follow_redirects=False).headers["location"] == "birds/"
        assert client.get("/collections/cars/page/style.css").status_code == 200
        assert client.get("/collections/cars/docs").status_code == 200


def test_hosts_by_settings_and_by_keys(gallery_folder: Path) -> None:
    for hosts, keys, host, status in (
        ("", "", "localhost", 200),
        ("", "", "evil.example", 421),
        ("photos.example", "", "photos.example:443", 200),
        ("", READER, "gpu-box.lan", 200),
        ("photos.example", READER, "gpu-box.lan", 421),
    ):
        with local_client(gallery_folder, hosts=hosts, read_keys=keys) as client:
            assert client.get("/items", headers={"host": host, "x-api-key": READER}).status_code == status


def test_probes_are_answered_at_any_name_and_as_often_as_they_come(gallery_folder: Path) -> None:
    for galleries, prefix in ((gallery_folder, ""), ([f"birds={gallery_folder}"], "/collections/birds")):
        with local_client(galleries, rate=0.01, burst=1) as client:
            for path in ("/livez", "/readyz", f"{prefix}/readyz"):
                answers = [client.get(path, headers={"host": "10.0.0.7"}).status_code for _ in range(3)]
                assert answers == [200] * 3


@pytest.mark.slow
def test_a_service_with_a_read_key_may_be_public(gallery_folder: Path) -> None:
    environment = {"ZOO_SERVE_READ_KEYS": READER}
    with serving(gallery_folder, "--host", "0.0.0.0", "--max-k", 3, environment=environment) as running:
        url, key = running.url.replace("0.0.0.0", "127.0.0.1"), {"authorization": f"Bearer {READER}"}
        assert httpx.get(f"{url}/model", headers={"host": "gpu-box.lan", **key}).status_code == 200
        assert httpx.get(f"{url}/model").json()["error"]["code"] == "key_needed"
        assert httpx.post(f"{url}/search?id=1&k=4", headers=key).json()["error"]["code"] == "invalid_k"
        assert httpx.get(f"{url}/livez").status_code == httpx.get(f"{url}/readyz").status_code == 200


def test_the_process_loads_no_torch(server: Running) -> None:
    assert httpx.post(f"{server.url}/search", content=toys.query(0)).status_code == 200
    assert "torch" not in Path(f"/proc/{server.process.pid}/maps").read_text()


@pytest.mark.slow
def test_a_uvicorn_of_its_own_logs_no_query_strings(gallery_folder: Path) -> None:
    words = [sys.executable, "-m", "uvicorn", "serving.app:create_app", "--factory", "--port", "0"]
    environment = {**os.environ, GALLERY: str(gallery_folder)}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stderr=subprocess.STDOUT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        url = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line.decode())))
        assert httpx.post(f"{url}/search?id=1&label=my-secret-label").status_code == 200
        process.terminate()
        log = process.stdout.read().decode()
    assert "Shutting down" in log
    assert "my-secret-label" not in log


@pytest.mark.slow  # two workers
def test_a_wrong_setting_ends_a_uvicorn_of_its_own_with_a_sentence(gallery_folder: Path) -> None:
    words = [sys.executable, "-m", "uvicorn", "serving.app:create_app", "--factory", "--port", "0", "--workers", "2"]
    environment = {**os.environ, GALLERY: str(gallery_folder), "ZOO_SERVE_WRITE_KEYS": "many"}
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "zoo: error: ZOO_SERVE_WRITE_KEYS" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_galleries_are_prepared_once_however_often_they_are_opened(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Searcher] = []
    monkeypatch.setattr(Searcher, "check_texts", lambda searcher: tried.append(searcher))
    app = app_over(gallery_folder)
    app.state.collections.open()  # as `zoo serve` does, whose errors have no traceback
    with TestClient(app, "http://localhost") as client:
        assert client.post("/search?id=1").status_code == 200
    assert len(tried) == 1


def test_the_factory_reads_the_environment(gallery_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GALLERY, str(gallery_folder))
    with TestClient(create_app(), "http://localhost") as client:  # with its lifespan
        assert client.get("/items").json()["total"] == 24
    monkeypatch.delenv(GALLERY)
    with raises(UsageError, "missing-value"), TestClient(create_app(), "http://localhost"):
        pass
