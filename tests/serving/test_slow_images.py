"""Images that are built to be slow, sent to the service and given to the command line: everybody else is served."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.proof.slow import slow_files
from tests.serving import toys
from tests.serving.running import Running, run, serving

pytestmark = pytest.mark.slow

SLOWEST = ("PNG of profiles", "TIFF of deflate tiles", "TIFF of a tile of 2 GB", "TIFF of JPEG tiles of 99 scans")


@pytest.fixture(scope="module")
def attack() -> list[bytes]:
    files = slow_files(24_000_000)
    return [files[name] for name in SLOWEST] + [files["PNG of profiles"]] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_honest_searches_are_answered_beside_slow_images(
    gallery_folder: Path, attack: list[bytes], workers: int
) -> None:
    with serving(gallery_folder, "--workers", workers) as running:
        statuses: list[int] = []

        def send(data: bytes) -> None:
            statuses.append(httpx.post(f"{running.url}/search", content=data, timeout=60).status_code)

        threads = [threading.Thread(target=send, args=(data,)) for data in attack]
        for thread in threads:
            thread.start()
        honest = [search(running) for _ in range(20)]
        for thread in threads:
            thread.join()
        assert all(answer.status_code == 200 for answer in honest)
        assert len({json.dumps(answer.json()["results"]) for answer in honest}) == 1
        assert sorted(set(statuses) - {413, 422, 400}) == []


def search(running: Running) -> httpx.Response:
    return httpx.post(f"{running.url}/search", content=toys.query(0), timeout=30)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_stops_while_images_are_decoded(gallery_folder: Path, attack: list[bytes], workers: int) -> None:
    environment = {"ZOO_SERVE_DRAIN_SECONDS": "1", "ZOO_SERVE_SHUTDOWN_DELAY": "0"}
    with serving(gallery_folder, "--workers", workers, environment=environment) as running:

        def send() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{running.url}/search", content=attack[0], timeout=60)

        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        assert running.stop(signal.SIGTERM) == 0  # which waits for 20 seconds
        for thread in threads:
            thread.join()


def test_zoo_index_and_search_refuse_slow_images(
    gallery_folder: Path, model_folder: Path, attack: list[bytes], pictures: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    good = sorted(pictures.rglob("*.png"))[0]
    (folder / "good.png").write_bytes(good.read_bytes())
    for number, data in enumerate(attack[:3]):
        (folder / f"slow-{number}.png").write_bytes(data)
    done = run("index", model_folder, folder, "--out", tmp_path / "gallery", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["items"] == 1, report
    done = run("search", gallery_folder, folder / "slow-0.png")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
