"""`zoo serve` with one worker and with several: start, connections, limits, failures and the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from serving.run import KEEP_ALIVE, listen
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import Running, run, serving, stopped
from zoo.errors import UsageError

pytestmark = pytest.mark.slow

KEY = "write-key-of-the-workers"
HEADERS = {"authorization": f"Bearer {KEY}"}
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /search?k=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"


@pytest.fixture(scope="module")
def workers(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    copy = tmp_path_factory.mktemp("workers") / "gallery"
    shutil.copytree(gallery_folder, copy)
    environment = {"ZOO_SERVE_WRITE_KEYS": KEY}
    with serving(copy, "--workers", 2, environment=environment, stderr=subprocess.PIPE) as running:
        yield running


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; a busy machine may need long."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def metric(service: Running, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", httpx.get(f"{service.url}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/livez")
    except httpx.ConnectError:
        return True
    return False


@contextmanager
def connection(service: Running, client: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Yield a connection from an address of this machine."""
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=30, source_address=(client, 0)) as connected:
        yield connected


def status_of(connected: socket.socket) -> int:
    """Return the status of the next answer, which has an empty body or closes the connection."""
    head = b""
    while b"\r\n\r\n" not in head:
        received = connected.recv(65536)
        assert received, head
        head += received
    return int(head[9:12])


def test_addresses() -> None:
    for host in ("127.0.0.1", "localhost"):
        listen(host, 0, has_keys=False).close()
    listen("0.0.0.0", 0, has_keys=True).close()
    for host, port, code in (
        ("0.0.0.0", 0, "invalid-keys"),
        ("::", 0, "invalid-keys"),
        ("nowhere.invalid", 0, "invalid-value"),
        (f"{'a' * 64}.example", 0, "invalid-value"),
        ("a..b", 0, "invalid-value"),
        ("::1", 65536, "invalid-value"),
    ):
        with raises(UsageError, code):
            listen(host, port, has_keys=False)
    with socket.create_server(("127.0.0.1", 0)) as taken, raises(UsageError, "invalid-value"):
        listen("127.0.0.1", taken.getsockname()[1], has_keys=False)


def test_the_second_part_of_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with listen("127.0.0.1", 0, has_keys=False) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_cannot_be_served_ends_the_command(count: int, gallery_folder: Path, tmp_path: Path) -> None:
    for words, message in (
        ((tmp_path,), "zoo index MODEL DIR"),
        ((gallery_folder, "--host", "::"), "ZOO_SERVE_READ_KEYS"),
        ((gallery_folder, "--device", "abacus"), "abacus"),
    ):
        outcome = run("serve", *words, "--port", 0, "--workers", count)
        assert outcome.returncode in (1, 2)
        assert message in outcome.stderr
        assert "Traceback" not in outcome.stderr
        assert outcome.stdout == ""


def test_a_search_finds_what_another_worker_has_added(workers: Running) -> None:
    first, second = workers.workers()
    rng, searches = (
        np.random.default_rng(3),
        'zoo_requests_total{collection="",method="POST",route="/search",status="200"}',
    )
    before = metric(workers, searches)
    for round_, (writer, reader) in enumerate(((first, second), (second, first))):
        picture = toys.encoded(Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)))
        with stopped(reader):
            added = httpx.post(f"{workers.url}/items", files={"image": picture}, headers=HEADERS).json()["items"][0]
        with stopped(writer):
            best = httpx.post(f"{workers.url}/search?k=1", content=picture).json()["results"][0]
            assert (best["id"], round(best["similarity"], 5)) == (added["id"], 1)
            assert httpx.delete(f"{workers.url}/items/{added['id']}", headers=HEADERS).status_code == 200
        with stopped(reader):
            left = httpx.post(f"{workers.url}/search?k=1", content=picture).json()["results"][0]
            assert left["id"] != added["id"]
            # Whichever worker is asked, the metrics are those of both.
            assert metric(workers, searches) == before + 2 * (round_ + 1)


def test_a_worker_that_dies_is_replaced_while_the_other_answers(workers: Running) -> None:
    first, second = workers.workers()
    os.kill(first, signal.SIGKILL)
    for _ in range(5):
        assert httpx.post(f"{workers.url}/search?id=1").status_code == 200
    until(lambda: len({*workers.workers()} - {first}) == 2)
    assert second in workers.workers()
    (new,) = set(workers.workers()) - {second}
    assert workers.process.stderr
    assert any(f"worker {first}" in line and "WARNING" in line for line in workers.process.stderr)
    until(lambda: "onnxruntime" in Path(f"/proc/{new}/maps").read_text())
    with stopped(second):
        assert httpx.post(f"{workers.url}/search?id=1", timeout=60).status_code == 200


def test_connections_that_come_together_are_shared(workers: Running) -> None:
    """One worker that took all of them would leave the other without work for as long as clients keep them."""
    url = httpx.URL(workers.url)

    async def counts() -> list[int]:
        opened = await asyncio.gather(*(asyncio.open_connection(url.host, url.port) for _ in range(8)))
        for reader, writer in opened:
            writer.write(GET + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
        processes = [psutil.Process(pid).net_connections() for pid in workers.workers()]
        for _, writer in opened:
            writer.close()
        return [sum(one.status == "ESTABLISHED" and one.laddr.port == url.port for one in each) for each in processes]

    until(lambda: len(workers.workers()) == 2)
    # In one round a busy machine may let a worker wait for its core, therefore the rounds count together.
    rounds = [asyncio.run(counts()) for _ in range(5)]
    assert min(map(sum, zip(*rounds, strict=True))) >= 10


def test_each_worker_has_its_share_of_the_limits(workers: Running) -> None:
    service = httpx.get(f"{workers.url}/stats").json()["service"]
    assert (service["workers"], service["limits"]["concurrency"]) == (2, 128)
    cores = max(1, len(os.sched_getaffinity(workers.process.pid)) // 2)
    share = service["each_worker"]
    assert (share["concurrency"], share["burst"], share["cores"]) == (64, 10, cores)
    assert share["threads"] <= cores


def test_all_workers_end_with_the_command(workers: Running) -> None:
    children = workers.workers()
    with httpx.Client() as client:  # an idle connection delays nothing
        client.get(f"{workers.url}/livez")
        assert workers.stop() == 0
    assert not any(map(is_alive, children))
    assert is_refused(workers.url)


@pytest.mark.slow
def test_a_stop_while_a_worker_starts_is_a_clean_end(gallery_folder: Path) -> None:
    with serving(gallery_folder, "--workers", 2) as running:
        (first, _) = running.workers()
        os.kill(first, signal.SIGKILL)
        until(lambda: len({*running.workers()} - {first}) == 2)
        assert running.stop() == 0


@pytest.mark.slow
def test_the_limits_hold_for_all_workers_together(gallery_folder: Path) -> None:
    with serving(gallery_folder, "--workers", 2, "--concurrency", 2, "--rate", 2, "--burst", 6) as limited:
        start = time.monotonic()
        # One connection each, so that both workers are asked; forged addresses and keys make no new client.
        forged = [{"x-api-key": f"{n}", "x-forwarded-for": f"10.0.0.{n}"} for n in range(30)]
        statuses = [httpx.get(f"{limited.url}/items/1", headers=headers).status_code for headers in forged]
        assert 3 <= statuses.count(200) <= 6 + 2 * (time.monotonic() - start)
        assert set(statuses) == {200, 429}
        with ExitStack() as stack:
            held = [stack.enter_context(connection(limited, f"127.0.1.{1 + number}")) for number in range(8)]
            for each in held:
                each.sendall(POST + b"Content-Length: 999\r\n\r\n")
                each.settimeout(2)
            refused = 0
            for each in held:
                with suppress(TimeoutError):
                    refused += status_of(each) == 429
            assert 6 <= refused < 8  # at least one request is in progress, at most one per worker
        children = limited.workers()
        assert limited.stop(signal.SIGKILL) == -9
        until(lambda: not any(map(is_alive, children)))


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_requests_at_the_end_are_answered_or_refused_but_never_cut_off(
    count: int, gallery_folder: Path, tmp_path: Path
) -> None:
    """A request that is cut off may have been done, and a proxy may not send it again.

    The service logs each request that it has begun. It has not begun that of a connection which the kernel accepts
    between the last look at the socket and its end, and resets; nobody can prevent one.
    """
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

    options = ("--workers", count, "--log-requests", 1)
    with (
        (tmp_path / "log").open("w") as log,
        serving(gallery_folder, *options, stderr=log.fileno()) as running,
        ThreadPoolExecutor(4) as pool,
    ):
        clients = [pool.submit(ask, running.url, keep) for keep in (False, True) * 2]
        until(lambda: outcomes["answered"] > 20)
        running.process.terminate()
        for client in clients:
            client.result(60)
        assert running.process.wait(30) == 0
    begun = [json.loads(line)["status"] for line in (tmp_path / "log").read_text().splitlines()]
    assert begun == [200] * outcomes["answered"]
    assert sum(outcomes.values()) - outcomes["answered"] - outcomes["refused"] <= 1, outcomes


def test_the_variant_of_a_model_that_a_variable_names_is_checked_there(
    gallery_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))
    file = json.loads((moved / "model.json").read_text())
    (moved / "model.json").write_text(json.dumps({**file, "ref": str(tmp_path / "gone")}))
    with serving(moved, "--precision", "fp32", environment={"ZOO_MODEL": str(model_folder)}) as running:
        assert httpx.get(f"{running.url}/readyz").status_code == 200


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_during_the_shutdown_delay_everything_is_answered_but_readyz(count: int, gallery_folder: Path) -> None:
    with (
        serving(gallery_folder, "--shutdown-delay", 2, "--workers", count, stderr=subprocess.PIPE) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        assert client.get("/readyz").status_code == 200
        start = time.monotonic()
        for _ in range(2):  # service managers may signal twice
            running.process.terminate()
        until(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/readyz").json()["error"]["code"] == "stopping"
        answer = client.post("/search?id=1")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert client.get("/livez").status_code == 200
        assert time.monotonic() - start < 2
        until(lambda: is_refused(running.url))
        assert time.monotonic() - start >= 2
        assert running.process.wait(30) == 0
        assert running.process.stderr
        assert running.process.stderr.read() == ""


def test_a_request_in_progress_is_answered_before_the_end(gallery_folder: Path) -> None:
    image = toys.query(0)
    with serving(gallery_folder, stderr=subprocess.PIPE) as server:

        def slowly() -> Iterator[bytes]:
            yield image[:100]
            server.process.send_signal(signal.SIGTERM)
            until(lambda: is_refused(server.url))
            yield image[100:]

        answer = httpx.post(f"{server.url}/search", content=slowly(), headers={"content-type": "image/png"})
        assert answer.json()["results"][0]["label"] == "red stripes"
        output, errors = server.process.communicate(timeout=20)
        assert (server.process.returncode, output, errors) == (0, "", "")


@pytest.mark.parametrize(
    ("signals", "seconds"), [([signal.SIGTERM], 1), ([signal.SIGINT] * 3, 60)], ids=["drained", "Ctrl-C again"]
)
def test_a_request_that_does_not_end_in_time_gets_503(
    signals: list[signal.Signals], seconds: int, gallery_folder: Path
) -> None:
    with serving(gallery_folder, "--drain-seconds", seconds, stderr=subprocess.PIPE) as running:
        with connection(running) as connected:
            connected.sendall(POST + b"Content-Length: 999\r\n\r\n")
            until(lambda: metric(running, "zoo_requests_in_progress") == 2)
            for number in signals:
                running.process.send_signal(number)
                until(lambda: is_refused(running.url))
            answer = connected.makefile("rb").read()
        assert running.process.wait(30) == 0
        assert running.process.stderr
        assert "Traceback" not in running.process.stderr.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"stopped"' in answer


def refusal_of(connected: socket.socket) -> tuple[int, str]:
    """Return status and code of the next answer, which closes the connection or is followed by nothing."""
    answer = b""
    while not answer.endswith(b"}}"):
        received = connected.recv(65536)
        assert received, answer
        answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head[9:12]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS",
        b"nonsense\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        GET + b"Host: elsewhere\r\n\r\n",
        GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        GET + b"X Y: z\r\n\r\n",
    ],
    ids=["TLS", "nonsense", "no host", "two hosts", "two lengths", "bad name"],
)
def test_an_invalid_head_is_refused(server: Running, head: bytes) -> None:
    with connection(server) as connected:
        connected.sendall(head)
        assert refusal_of(connected) == (400, "bad_http")


@pytest.mark.parametrize("path", [b"/livez", b"/items"])
@pytest.mark.parametrize("size", [70_000, 2**20])
@pytest.mark.parametrize("kind", ["value", "headers", "path", "query", "name", "cookie"])
def test_a_head_of_more_than_64_kilobytes_is_refused(server: Running, kind: str, size: int, path: bytes) -> None:
    """Also one that comes in a single packet, which the server has read before it knows."""
    long, get = b"x" * size, b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path
    head = {
        "value": get + b"X-Long: " + long,
        "headers": get + b"\r\n".join(b"X-%d: y" % number for number in range(size // 9)),
        "path": b"GET " + path + b"/" + long + b" HTTP/1.1\r\nHost: 127.0.0.1",
        "query": b"GET " + path + b"?a=" + long + b" HTTP/1.1\r\nHost: 127.0.0.1",
        "name": get + b"X-" + long + b": y",
        "cookie": get + b"Cookie: zoo-key=" + long,
    }[kind]
    with connection(server) as connected:
        with suppress(BrokenPipeError, ConnectionResetError):
            connected.sendall(head + b"\r\n\r\n")
        with suppress(ConnectionResetError):
            assert refusal_of(connected) == (431, "head_too_large")


def test_a_head_without_end_is_refused(server: Running) -> None:
    with connection(server) as connected:
        with suppress(BrokenPipeError, ConnectionResetError):
            connected.sendall(GET + b"X-Long: " + b"x" * 2**20)
        with suppress(ConnectionResetError):
            assert refusal_of(connected) == (431, "head_too_large")


def test_a_head_of_60_kilobytes_is_read(server: Running) -> None:
    with connection(server) as connected:
        for pause in (0.0, 0.1):  # in one packet, and in several
            connected.sendall(GET + b"X-Long: " + b"x" * 59_000)
            time.sleep(pause)
            connected.sendall(b"x" * 1000 + b"\r\n\r\n")
            assert status_of(connected) == 200


def test_the_wish_for_another_protocol_is_ignored(server: Running) -> None:
    """`curl --http2` sends such a head, and continues with HTTP/1.1."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    websocket = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    image = toys.query(1)
    with connection(server) as connected:
        for head in (upgrade, websocket, b""):
            connected.sendall(GET + head + b"\r\n")
            assert status_of(connected) == 200
        connected.sendall(POST + upgrade + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(image) + image)
        head, _, body = connected.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert len(json.loads(body)["results"]) == 1


def test_idle_connections_outlive_those_of_proxies() -> None:
    assert KEEP_ALIVE > 60, "nginx and load balancers close theirs after 60 s"


def test_more_connections_are_kept_than_a_shell_allows_files(gallery_folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            running = opened.enter_context(serving(gallery_folder))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = [opened.enter_context(connection(running)) for _ in range(300)]
        for connected in connections:
            connected.sendall(GET + b"\r\n")
        assert {status_of(connected) for connected in connections} == {200}
