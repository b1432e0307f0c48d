"""Clients that attack the connections of `zoo serve`, and threads that never end, with one worker and with two."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from serving.watchdog import KILLED
from tests.serving.running import ROOT, Running, arguments, serving

pytestmark = pytest.mark.slow

GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /search?k=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
ONE_AND_TWO = pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
SCRIPT = """
import ctypes, os, re, sys, threading, time
from pathlib import Path
from serving.gallery.search import Searcher
from zoo.cli.main import main

def hold():
    while not Path(os.environ["TRIGGER"]).exists():
        time.sleep(0.02)
    Path(os.environ["TRIGGER"] + str(os.getpid())).touch()
    {hold}

{patch}
if __name__ == "__mp_main__" or "1" in sys.argv:
    threading.Thread(target=hold, daemon={daemon}).start()
if __name__ == "__main__":
    sys.exit(main())
"""
"""A service with a thread that does something for ever, once a file exists; of several workers each has one."""


def connected_to(service: Running) -> socket.socket:
    url = httpx.URL(service.url)
    return socket.create_connection((url.host, url.port), timeout=60)


def seconds_of(service: Running) -> float:
    """Return the processor time that the processes of a service have taken."""
    process = psutil.Process(service.process.pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# Connections


@ONE_AND_TWO
def test_more_connections_than_open_files(count: int, gallery_folder: Path, tmp_path: Path) -> None:
    """The service burns no core, floods no log, and closes silent connections to answer those that ask."""
    log = tmp_path / "log"
    few = ["sh", "-c", 'ulimit -n 160 && exec "$@"', "sh", *arguments()]
    options = ("--workers", count)
    with (
        log.open("w") as stderr,
        serving(gallery_folder, *options, stderr=stderr.fileno(), command=few) as running,
        ExitStack() as opened,
    ):
        for _ in range(400):
            opened.enter_context(connected_to(running))
        before, start = seconds_of(running), time.monotonic()
        while time.monotonic() < start + 4:
            assert httpx.post(f"{running.url}/search?id=1", timeout=30).status_code == 200
            time.sleep(0.25)
        assert seconds_of(running) - before < 2
        assert running.stop() == 0
    lines = log.read_text().splitlines()
    assert 1 <= len(lines) <= 3 * count
    assert all("WARNING serving.connections" in line for line in lines)


DRIPS = {
    "silent": (b"", b""),
    "half": (GET, b""),
    "slow": (GET, b"X-Slow: y\r\n"),
    "second half": (GET + b"\r\n" + GET, b""),
    "second slow": (GET + b"\r\n" + GET, b"X-Slow: y\r\n"),
    "body": (POST + b"Content-Length: 9999999\r\n\r\n", b"x"),
    "refused body": (POST + b"Content-Length: 99999999\r\n\r\n", b"x"),
    "body of an answered request": (GET + b"Content-Length: 99999999\r\n\r\n", b"x"),
}
"""What a client sends first, and what it sends again and again."""


@ONE_AND_TWO
def test_clients_that_never_complete_a_request_are_cut_off(count: int, gallery_folder: Path) -> None:
    """Slowly or silently, in the first request of a connection or in a later one."""
    options = ("--workers", count, "--body-seconds", 1)
    with serving(gallery_folder, *options) as running, ThreadPoolExecutor(len(DRIPS)) as pool:
        received = dict(zip(DRIPS, pool.map(lambda drip: until_cut_off(running, *drip), DRIPS.values()), strict=True))
        assert received["body"].startswith(b"HTTP/1.1 408 ")
        assert received["refused body"].startswith(b"HTTP/1.1 413 ")
        assert received["second slow"].startswith(b"HTTP/1.1 200 ")
        assert received["half"] == received["slow"] == received["silent"] == b""


def until_cut_off(service: Running, first: bytes, more: bytes) -> bytes:
    """Return what the service sends to a client until it closes the connection."""
    received, start = b"", time.monotonic()
    with connected_to(service) as connection, suppress(ConnectionError):
        connection.sendall(first)
        connection.settimeout(0.2)
        while time.monotonic() < start + 30:
            try:
                part = connection.recv(65536)
            except TimeoutError:
                connection.sendall(more)
                continue
            received += part
            if not part:
                return received
        pytest.fail("it was not cut off")
    return received


def test_what_clients_send_fills_no_log(gallery_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, serving(gallery_folder, stderr=stderr.fileno()) as running:
        for head in (b"nonsense\r\n\r\n", GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"):
            for _ in range(20):
                with connected_to(running) as connection:
                    connection.sendall(head)
                    assert connection.recv(100).startswith(b"HTTP/1.1 ")
        assert running.stop() == 0
    assert log.read_text() == ""


# The end


@contextmanager
def holding(
    gallery: Path, folder: Path, hold: str, *options: object, daemon: bool = True, patch: str = ""
) -> Iterator[Running]:
    """Yield a service in each of whose serving processes a thread does `hold` by now."""
    script, trigger = folder / "service.py", folder / "trigger"
    script.write_text(SCRIPT.format(hold=hold, daemon=daemon, patch=patch))
    environment = {"TRIGGER": str(trigger), "PYTHONPATH": str(ROOT)}
    with serving(
        gallery, *options, environment=environment, command=[sys.executable, str(script)], stderr=subprocess.PIPE
    ) as running:
        trigger.touch()
        pids = running.workers() or [running.process.pid]
        until(lambda: all(Path(f"{trigger}{pid}").exists() for pid in pids))
        time.sleep(0.2)
        yield running


HOLDS = {
    "a thread that is not a daemon": ("time.sleep(10**6)", False, signal.SIGTERM),
    "C code that holds the interpreter": ("ctypes.PyDLL(None).sleep(10**6)", True, signal.SIGTERM),
    "a regular expression": ('re.match("(a+)+$", 64 * "a" + "b")', True, signal.SIGINT),
}


@pytest.mark.slow
@ONE_AND_TWO
@pytest.mark.parametrize("held", HOLDS)
def test_a_stop_ends_what_threads_hold_up(held: str, count: int, gallery_folder: Path, tmp_path: Path) -> None:
    code, daemon, number = HOLDS[held]
    options = ("--workers", count, "--drain-seconds", "1.0", "--shutdown-delay", 0.5)
    with holding(gallery_folder, tmp_path, code, *options, daemon=daemon) as running:
        pids, start = [running.process.pid, *running.workers()], time.monotonic()
        running.process.send_signal(number)
        assert running.process.wait(30) in (KILLED, -signal.SIGKILL)
        assert time.monotonic() - start < 1.5 + 10
        assert not any(map(psutil.pid_exists, pids[1:]))


@ONE_AND_TWO
def test_a_request_that_never_ends_holds_up_no_stop(count: int, gallery_folder: Path, tmp_path: Path) -> None:
    never = "time.sleep(10**6) if Path(os.environ['TRIGGER']).exists() else ready(self)"
    patch = f"ready = Searcher.is_ready; Searcher.is_ready = lambda self: {never}"
    options = ("--workers", count, "--drain-seconds", 0.5)
    with holding(gallery_folder, tmp_path, "pass", *options, patch=patch) as running, connected_to(running) as asking:
        asking.sendall(GET.replace(b"livez", b"readyz") + b"\r\n")
        time.sleep(0.5)
        start = time.monotonic()
        running.process.terminate()
        assert running.process.wait(30) == KILLED
        assert time.monotonic() - start < 0.5 + 10
        assert asking.recv(1000).startswith(b"HTTP/1.1 503 ")


@ONE_AND_TWO
def test_nothing_is_left_of_a_service_that_was_killed(count: int, gallery_folder: Path) -> None:
    with serving(gallery_folder, "--workers", count) as running:
        children = psutil.Process(running.process.pid).children(recursive=True)
        assert len(children) >= count
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))


@pytest.mark.parametrize("head", [GET, POST], ids=["GET", "POST"])
def test_chunks_of_one_byte_hold_up_nobody(server: Running, head: bytes) -> None:
    with connected_to(server) as attacker:
        attacker.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 40_000)
        assert attacker.recv(1000).startswith(b"HTTP/1.1 ")
        with suppress(OSError):
            while attacker.recv(2**16):
                pass
    assert httpx.get(f"{server.url}/livez", timeout=5).status_code == 200


def test_a_body_that_is_no_http_is_refused_once(gallery_folder: Path, tmp_path: Path) -> None:
    """The application answers as well, unless it hears that its client has gone."""
    with (tmp_path / "log").open("wb") as log, serving(gallery_folder, stderr=log.fileno()) as running:
        for _ in range(5):
            with connected_to(running) as asking:
                asking.sendall(GET + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n")
                assert asking.recv(1000).startswith(b"HTTP/1.1 ")
        assert httpx.get(f"{running.url}/livez").status_code == 200
    assert "Traceback" not in (tmp_path / "log").read_text()
