"""`zoo serve --workers 2`: what one worker writes the other finds; one that dies is replaced; all end together."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from serving import supervisor
from tests.serving import toys
from tests.serving.running import Running, run, serving, stopped
from zoo.paths import thread_count

KEY = {"authorization": "Bearer write-key-of-the-workers"}


@pytest.fixture(scope="module")
def service(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    copy = tmp_path_factory.mktemp("workers") / "gallery"
    shutil.copytree(gallery_folder, copy)
    keys = {"ZOO_SERVE_WRITE_KEYS": KEY["authorization"].split()[1]}
    with serving(copy, "--workers", 2, stderr=subprocess.PIPE, environment=keys) as running:
        yield running


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120  # a busy machine is no reason to fail
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.05)


def counted(service: Running, what: str) -> float:
    found = re.search(rf"^{re.escape(what)} (\S+)$", httpx.get(f"{service.url}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_what_one_worker_writes_the_next_search_at_any_finds(service: Running) -> None:
    first, second = service.workers()
    rng, searched = np.random.default_rng(3), 'zoo_requests_total{collection="",method="POST",route="/search",status="200"}'
    before = counted(service, searched)
    for n, (writer, reader) in enumerate(((first, second), (second, first))):
        picture = toys.encoded(Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)))
        with stopped(reader):
            added = httpx.post(f"{service.url}/items", files={"image": picture}, headers=KEY).json()["items"][0]
        with stopped(writer):
            best = httpx.post(f"{service.url}/search?k=1", content=picture).json()["results"][0]
            assert (best["id"], round(best["similarity"], 5)) == (added["id"], 1)
            assert httpx.delete(f"{service.url}/items/{added['id']}", headers=KEY).status_code == 200
        with stopped(reader):
            left = httpx.post(f"{service.url}/search?k=1", content=picture).json()["results"][0]
            assert left["id"] != added["id"]
            assert counted(service, searched) == before + 2 * (n + 1)  # of both workers, whichever is asked
            assert counted(service, 'zoo_gallery_items{collection=""}') == 24


def test_a_worker_that_dies_is_replaced_and_nobody_waits(service: Running) -> None:
    first, second = service.workers()
    os.kill(first, signal.SIGKILL)
    for _ in range(5):
        assert httpx.post(f"{service.url}/search?id=1").status_code == 200
    until(lambda: len(service.workers()) == 2 and first not in service.workers())
    assert second in service.workers()
    (new,) = set(service.workers()) - {second}
    until(lambda: "onnxruntime" in Path(f"/proc/{new}/maps").read_text())
    with stopped(second):
        assert httpx.post(f"{service.url}/search?id=1", timeout=60).status_code == 200
    # This very request; the one before is counted down a moment after it was answered.
    until(lambda: counted(service, "zoo_requests_in_progress") == 1)


def test_each_has_its_share_of_the_limits(service: Running) -> None:
    told = httpx.get(f"{service.url}/stats").json()["service"]
    limits = {"concurrency": 128, "queue_seconds": 0.75, "rate": 0.0, "burst": 20}
    assert (told["workers"], told["limits"]) == (2, limits)
    cores = max(1, len(os.sched_getaffinity(service.process.pid)) // 2)
    each = told["each_worker"]
    assert (each["concurrency"], each["burst"], each["cores"]) == (64, 10, cores)
    assert each["threads"] <= cores


@pytest.fixture(scope="module")
def limited(gallery_folder: Path) -> Iterator[Running]:
    with serving(gallery_folder, "--workers", 2, "--concurrency", 2, "--rate", 2, "--burst", 6) as running:
        yield running


def test_the_limits_hold_for_all_workers_together(limited: Running) -> None:
    started = time.monotonic()
    # A connection each, so that both workers are asked.
    made_up = [{"x-api-key": f"{n}", "x-forwarded-for": f"10.0.0.{n}"} for n in range(30)]
    answers = [httpx.get(f"{limited.url}/items/1", headers=headers) for headers in made_up]
    passed = [one.status_code for one in answers].count(200)
    assert 3 <= passed <= 6 + 2 * (time.monotonic() - started)
    assert {one.status_code for one in answers} == {200, 429}
    refusal = next(one.json() for one in answers if one.status_code == 429)
    assert refusal["error"]["message"].startswith("One client may send 2 requests a second.")
    with ExitStack() as stack:
        held = [stack.enter_context(unfinished(limited, f"127.0.1.{1 + number}")) for number in range(8)]
        ends = time.monotonic() + 20
        while len(refused := select.select(held, [], [], 0.5)[0]) < 6:
            assert time.monotonic() < ends
        assert all(b" 429 " in one.recv(100) for one in refused)
        assert len(refused) < 8, "one a worker is under way"


@contextmanager
def unfinished(running: Running, client: str) -> Iterator[socket.socket]:
    """A search from the address `client`, whose image does not come."""
    url = httpx.URL(running.url)
    with socket.create_connection((url.host, url.port), source_address=(client, 0)) as connection:
        head = f"POST /search HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: 999\r\n\r\n"
        connection.sendall(head.encode())
        yield connection


def test_one_that_hangs_is_killed_and_replaced_while_the_others_answer(gallery_folder: Path) -> None:
    with serving(gallery_folder, "--workers", 2, "--hang-seconds", 4, stderr=subprocess.PIPE) as running:
        first, second = running.workers()
        os.kill(first, signal.SIGSTOP)
        answered = 0
        while alive(first):
            assert httpx.post(f"{running.url}/search?id=1", timeout=30).status_code == 200
            answered += 1
            time.sleep(0.1)
        assert answered
        until(lambda: len(running.workers()) == 2 and first not in running.workers())
        assert second in running.workers(), "who answers is let be"
        (new,) = set(running.workers()) - {second}
        until(lambda: "onnxruntime" in Path(f"/proc/{new}/maps").read_text())
        os.kill(second, signal.SIGSTOP)
        assert httpx.post(f"{running.url}/search?id=1", timeout=60).status_code == 200
        until(lambda: not alive(second))
        assert running.stop() == 0
        assert running.process.stderr
        said = running.process.stderr.read()
    assert re.search(rf"worker 1 \({first}\) has not answered for 4\.\d s and is killed\.\n", said)
    assert f"worker 1 ({first}) ended with -9; again in 0.5 s." in said


def test_all_end_with_the_command(service: Running) -> None:
    children = service.workers()
    with httpx.Client() as client:  # a connection that is kept open holds nobody up
        client.get(f"{service.url}/livez")
        assert service.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert service.process.stderr
    said = service.process.stderr.read()
    assert re.fullmatch(
        r"\S+ \S+ WARNING serving\.supervisor: worker 1 \(\d+\) ended with -9; again in 0\.5 s\.\n", said
    )
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url)


@pytest.mark.parametrize("workers", [1, 2])
def test_who_comes_as_it_ends_is_answered_or_refused_but_never_cut_off(workers: int, gallery_folder: Path) -> None:
    """A request that was sent and is cut off may have been done, and a proxy may not send it again."""
    outcomes: Counter[str] = Counter()

    def ask(url: str, keep: bool) -> None:
        with httpx.Client() as client:
            while not outcomes["refused"]:
                try:
                    (client if keep else httpx).post(f"{url}/search?id=1").raise_for_status()
                    outcomes["answered"] += 1
                except httpx.ConnectError:
                    outcomes["refused"] += 1
                except httpx.HTTPError as error:
                    outcomes[repr(error)] += 1

    with serving(gallery_folder, "--workers", workers) as running, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, running.url, keep) for keep in (False, True) * 2]
        until(lambda: outcomes["answered"] > 20)
        running.process.terminate()
        for one in asked:
            one.result(60)
    assert set(outcomes) == {"answered", "refused"}


@pytest.mark.parametrize(
    ("signals", "seconds"), [([signal.SIGTERM], 1), ([signal.SIGINT] * 2, 60)], ids=["drained", "Ctrl-C twice"]
)
def test_what_is_not_done_as_it_ends_is_told_so_without_a_traceback(
    signals: list[signal.Signals], seconds: int, gallery_folder: Path
) -> None:
    with serving(gallery_folder, "--drain-seconds", seconds, stderr=subprocess.PIPE) as running:
        with unfinished(running, "127.0.0.1") as connection:
            until(lambda: counted(running, "zoo_requests_in_progress") == 2)  # that, and this question
            for number in signals:
                running.process.send_signal(number)
                until(lambda: refuses(running.url))
            connection.settimeout(30)
            answer = connection.makefile("rb").read()
        assert running.process.wait(30) == 0
        assert running.process.stderr
        said = running.process.stderr.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"stopped"' in answer
    assert "Traceback" not in said


def refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/livez")
    except httpx.ConnectError:
        return True
    return False


def test_workers_end_when_the_command_is_killed(limited: Running) -> None:
    children = limited.workers()
    assert limited.stop(signal.SIGKILL) == -9
    until(lambda: not any(Path(f"/proc/{pid}/maps").is_file() for pid in children if alive(pid)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_what_cannot_be_served_ends_the_command(gallery_folder: Path) -> None:
    outcome = run("serve", gallery_folder, "--workers", 2, "--device", "abacus", "--port", 0)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "abacus" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_the_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for count, share in ((1, 8), (2, 4), (3, 2), (16, 1)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setenv("OMP_NUM_THREADS", supervisor.environment(count, "x")["OMP_NUM_THREADS"])
        assert thread_count() == share
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert supervisor.environment(2, "x")["OMP_NUM_THREADS"] == "1", "fewer were allowed"
    for nonsense in ("", "0", "many", "-1", "99"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert thread_count() == 8
