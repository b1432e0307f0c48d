"""The application as a BentoML service."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from serving.gallery.search import Searcher
from tests.children import run_python
from tests.serving import toys
from tests.serving.running import ROOT
from zoo.data.images import Limits
from zoo.errors import GalleryError

pytestmark = pytest.mark.slow


def test_one_request_through_bentoml(gallery_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "query.png").write_bytes(toys.query(2))
    monkeypatch.setenv("ZOO_GALLERY", str(gallery_folder))
    monkeypatch.setenv("BENTOML_HOME", str(tmp_path / "home"))
    code = f"""
from pathlib import Path
from starlette.testclient import TestClient
from serving.service import ImageSearch
from bentoml._internal.utils.analytics.usage_stats import do_not_track
with TestClient(ImageSearch.to_asgi(), "http://localhost", raise_server_exceptions=False) as client:
    found = client.post("/search?k=3", content=Path({str(tmp_path / "query.png")!r}).read_bytes()).json()
    print({{hit["label"] for hit in found["results"]}})
    print([client.get(path).status_code for path in ("/", "/docs", "/readyz", "/livez", "/items", "/collections")])
    print(client.get("/nowhere").json()["error"]["code"], client.get("/metrics").text.count("bentoml"))
    print(client.get("/items", headers={{"host": "evil.example"}}).status_code, do_not_track())
"""
    lines = run_python(code).splitlines()
    assert lines == ["{'green disc'}", "[200, 200, 200, 200, 200, 200]", "not_found 0", "421 True"]


def test_readiness_is_checked_once_a_second(gallery_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, as often as they like, and every check costs an embedding."""
    checks: list[object] = []
    searcher = Searcher.open(gallery_folder)
    embed = searcher.embed

    def counted(image: bytes, limits: Limits) -> np.ndarray:
        checks.append(image)
        return embed(image, limits=limits)

    def fail(image: bytes, limits: Limits) -> np.ndarray:
        checks.append(image)
        raise GalleryError("the disk is gone")

    monkeypatch.setattr(searcher, "embed", counted)
    monkeypatch.setattr(searcher, "_last_check", (-math.inf, False))
    assert [searcher.is_ready() for _ in range(5)] == [True] * 5
    assert len(checks) == 1
    monkeypatch.setattr(searcher, "embed", fail)
    monkeypatch.setattr(searcher, "_last_check", (-math.inf, True))
    with pytest.raises(GalleryError):
        searcher.is_ready()
    assert not searcher.is_ready()
    assert len(checks) == 2
    searcher.close()


@contextmanager
def bentoml_serve(target: str, folder: Path, **environment: str) -> Iterator[str]:
    """Yield the URL of `bentoml serve`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "bentoml", "serve", target, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        words, cwd=folder, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while not is_ready(url):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def assert_served(url: str) -> None:
    hits = httpx.post(f"{url}/search?k=3", content=toys.query(2)).json()["results"]
    assert {hit["label"] for hit in hits} == {"green disc"}
    answer = httpx.get(f"{url}/nowhere")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert httpx.get(f"{url}/items", headers={"host": "evil.example"}).status_code == 421
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 2**16)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


@pytest.mark.slow
def test_bentoml_serves_the_module(gallery_folder: Path, tmp_path: Path) -> None:
    environment = {"ZOO_GALLERY": str(gallery_folder), "BENTOML_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    with bentoml_serve("serving.service:ImageSearch", tmp_path, **environment) as url:
        assert_served(url)


@pytest.mark.slow
def test_bentoml_starts_the_workers_of_the_settings(gallery_folder: Path, tmp_path: Path) -> None:
    """They share the limits, and their metrics are added up."""
    environment = {"ZOO_GALLERY": str(gallery_folder), "BENTOML_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    workers = {"ZOO_SERVE_WORKERS": "2", "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with bentoml_serve("serving.service:ImageSearch", tmp_path, **environment, **workers) as url:
        assert_served(url)
        end = time.monotonic() + 60
        while "zoo_workers 2.0" not in httpx.get(f"{url}/metrics").text:
            assert time.monotonic() < end
            time.sleep(0.2)
        service = httpx.get(f"{url}/stats").json()["service"]
    assert (service["workers"], service["each_worker"]["concurrency"]) == (2, 64)


@pytest.mark.slow
def test_a_bento_of_a_gallery_is_built_and_served(gallery_folder: Path, tmp_path: Path) -> None:
    environment = {"BENTOML_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    parcel = tmp_path / "parcel"
    for words in (
        [str(ROOT / "deploy" / "bento" / "assemble.py"), str(gallery_folder), str(parcel)],
        ["-m", "bentoml", "build", "--output", "tag", str(parcel)],
    ):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    for path in sorted(parcel.rglob("*"), reverse=True):  # the Bento is complete by itself
        path.rmdir() if path.is_dir() else path.unlink()
    with bentoml_serve(done.stdout.strip().removeprefix("__tag__:"), tmp_path, **environment) as url:
        assert_served(url)
