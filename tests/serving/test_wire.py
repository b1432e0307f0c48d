"""What comes over a connection: bounded before it is a request, and refused as everything else is."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from serving import wire
from serving.wire import MOST_HEAD
from tests.serving import toys
from tests.serving.running import Running, answering, serving

GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MODEL = GET.replace(b"livez", b"model")
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
POST = b"POST /search?k=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"


@dataclass(frozen=True)
class Line:
    """A connection, byte by byte."""

    socket: socket.socket
    read: BufferedReader

    def send(self, data: bytes) -> None:
        """As much of it as is taken."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of the next answer."""
        head = b"".join(iter(self.read.readline, b"\r\n"))
        lengths = (row.split(b":")[1] for row in head.split(b"\r\n") if row.lower().startswith(b"content-length"))
        return int(head.split()[1]), head, self.read.read(int(next(lengths)))

    def rest(self) -> bytes:
        """All that comes until the service closes the connection."""
        with suppress(ConnectionResetError):
            return self.read.read()
        return b""


@contextmanager
def connected(server: Running | str) -> Iterator[Line]:
    url = server if isinstance(server, str) else server.url
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as line, line.makefile("rb") as read:
        yield Line(line, read)


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X-Long: " + b"x" * 2**20,
        GET + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /" + b"x" * 2**20,
        b"GET /livez?" + b"x" * (MOST_HEAD + 1) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        GET + b"X-" + b"x" * 2**20,
    ],
    ids=["a value without end", "many headers", "a path without end", "a long query", "a name without end"],
)
def test_a_long_head_is_refused_before_it_is_read_whole(server: Running, head: bytes) -> None:
    with connected(server) as line:
        line.send(head)
        status, told, body = line.answer()
        assert status == 431
        assert b"application/json" in told
        assert json.loads(body)["error"]["code"] == "head_too_large"
        assert line.rest() == b""


def test_a_head_of_nearly_that_length_is_taken(server: Running) -> None:
    with connected(server) as line:
        for _ in range(2):  # each request has its own bound
            line.send(GET + b"X-Long: " + b"x" * (MOST_HEAD - 1000) + b"\r\n\r\n")
            assert line.answer()[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS",
        b"nonsense\r\n\r\n",
        b"GET livez HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        GET + b"X Y: z\r\n\r\n",
        GET + b"Host: elsewhere\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Running, data: bytes) -> None:
    with connected(server) as line:
        line.send(data)
        if data.startswith(POST):  # its head was a request, which is being answered
            assert b" 200 " not in line.rest()
            return
        status, _, body = line.answer()
        assert (status, json.loads(body)["error"]["code"]) == (400, "bad_http")
        assert line.rest() == b""


def test_what_follows_a_body_is_no_header(server: Running) -> None:
    """A trailer must not pass for what a proxy or the service has looked at before."""
    with connected(server) as line:
        trailers = b"X-Request-Id: smuggled\r\nHost: elsewhere\r\n"
        line.send(GET + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + trailers + b"\r\n")
        status, head, _ = line.answer()
        assert status == 200
        assert b"smuggled" not in head


def test_trailers_and_chunk_extensions_are_bounded(server: Running) -> None:
    for endless in (b"0\r\n" + b"X-Y: z\r\n" * 20_000, b"1;" + b"x" * 2**20):
        with connected(server) as line:
            line.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + endless)
            assert b" 200 " not in line.rest()


def test_another_protocol_that_is_asked_for_is_passed_over(server: Running, query: bytes) -> None:
    """As `curl --http2` asks: what follows on the connection is HTTP/1.1 all the same."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    with connected(server) as line:
        line.send(GET + upgrade + b"\r\n")
        assert line.answer()[0] == 200
        line.send(GET + upgrade + b"\r\n" + GET + b"\r\n")  # the second before the first is answered
        assert [line.answer()[0], line.answer()[0]] == [200, 200]
        line.send(GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n")
        assert line.answer()[0] == 200
        chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (query[:99], query[99:]))
        for sized in (b"Content-Length: %d\r\n\r\n" % len(query) + query, CHUNKED + chunked + b"0\r\n\r\n"):
            line.send(POST + upgrade + sized)
            status, _, body = line.answer()
            assert status == 200
            assert len(json.loads(body)["results"]) == 1
        line.send(POST + upgrade + b"Content-Length: 0\r\n\r\n")
        assert line.answer()[0] == 400
        line.send(POST + upgrade + b"Content-Length: %d\r\n\r\n" % len(query) + query[:50])
        time.sleep(0.1)
        line.send(query[50:] + GET + b"\r\n")
        assert [line.answer()[0], line.answer()[0]] == [200, 200]


def test_many_requests_in_one_piece_are_answered_in_their_order(server: Running) -> None:
    with connected(server) as line:
        line.send(b"".join(MODEL + b"X-Request-Id: number-%d\r\n\r\n" % n for n in range(50)))
        for n in range(50):
            assert b"number-%d\r\n" % n in line.answer()[1]


def test_requests_that_are_not_waited_for_are_bounded(server: Running) -> None:
    with connected(server) as line:
        line.send((GET + b"\r\n") * 2000)
        assert line.rest().count(b" 200 ") <= wire.MOST_PIPELINED + 1


def test_a_body_in_small_pieces_is_one_body(server: Running, query: bytes) -> None:
    with connected(server) as line:
        line.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(query), 7):
            piece = query[start : start + 7]
            line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        line.send(b"0\r\n\r\n")
        assert line.answer()[0] == 200


def test_a_head_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_SECONDS", 0.4)
    answering_slowly = Starlette(routes=[Route("/livez", _slowly)])
    with answering(answering_slowly, http=wire.Wire) as url:
        started = time.monotonic()  # the service counts from the connection
        with connected(url) as line:
            line.send(GET)
            status, _, body = line.answer()
            assert (status, json.loads(body)["error"]["code"]) == (408, "too_slow")
            assert line.rest() == b""
            assert time.monotonic() - started >= 0.4
        with connected(url) as line:  # a connection over which nothing comes
            assert line.rest() == b""
        with connected(url) as line:
            for _ in range(2):  # an answer may take longer, and so may the next request
                line.send(GET + b"\r\n")
                assert line.answer()[0] == 200
                time.sleep(0.6)
            line.send(GET + b"\r\n" + GET)  # it cannot be read while the first is answered
            assert line.answer()[0] == 200
            assert line.answer()[0] == 408


def test_a_connection_is_kept_for_longer_than_proxies_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wire.IDLE_SECONDS > 60, "nginx's and AWS's default"
    monkeypatch.setattr(wire, "IDLE_SECONDS", 0.8)
    with answering(Starlette(routes=[Route("/livez", _slowly)]), http=wire.Wire) as url, connected(url) as line:
        for _ in range(2):
            line.send(GET + b"\r\n")
            assert line.answer()[0] == 200
            time.sleep(0.4)
        assert line.rest() == b"", "it is closed then"


async def _slowly(request: Request) -> PlainTextResponse:
    await asyncio.sleep(0.6)
    return PlainTextResponse("1")


@pytest.fixture(scope="module")
def query() -> bytes:
    return toys.query(1)


def test_a_connection_that_is_reset_is_forgotten_at_once() -> None:
    """It is kept by its timer otherwise, for all of `IDLE_SECONDS`."""
    with answering(Starlette(routes=[Route("/livez", _slowly)]), http=wire.Wire) as url:
        before = count_wires()
        for _ in range(5):
            with connected(url) as line:
                line.send(GET + b"\r\n")
                assert line.answer()[0] == 200
                line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                line.read.close()
        deadline = time.monotonic() + 10
        while count_wires() > before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def count_wires() -> int:
    gc.collect()
    return sum(type(one) is wire.Wire for one in gc.get_objects())


def test_more_connections_are_kept_than_a_shell_lets_a_process_have_files(gallery_folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            running = opened.enter_context(serving(gallery_folder))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        lines = [opened.enter_context(connected(running)) for _ in range(300)]
        for line in lines:
            line.send(GET + b"\r\n")
        assert {line.answer()[0] for line in lines} == {200}
