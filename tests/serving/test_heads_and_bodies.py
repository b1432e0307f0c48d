"""Requests byte by byte: what `zoo serve` takes, what it refuses, and where one request ends and the next begins."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h11
import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from serving.connections import MAX_HEAD
from tests.serving.running import Running, answering

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HOST
WHOLE = GET + b"\r\n"
POST = b"POST /search?id=1 HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"


def line(text: bytes, headers: bytes = HOST) -> bytes:
    """Return a request without a body."""
    return text + b"\r\n" + headers + b"\r\n"


REFUSED = {
    "an empty line first": b"\r\n" + WHOLE,
    "a space first": b" " + WHOLE,
    "two spaces": line(b"GET  /livez HTTP/1.1"),
    "a tab": line(b"GET\t/livez HTTP/1.1"),
    "a space at the end of the line": line(b"GET /livez HTTP/1.1 "),
    "no protocol": b"GET /livez\r\n\r\n",
    "HTTP/0.9": line(b"GET /livez HTTP/0.9"),
    "HTTP/1.2": line(b"GET /livez HTTP/1.2"),
    "HTTP/2.0": line(b"GET /livez HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/1.1": line(b"GET /livez http/1.1"),
    "RTSP": line(b"GET /livez RTSP/1.0"),
    "an unknown method": line(b"BREW /livez HTTP/1.1"),
    "CONNECT": line(b"CONNECT /livez HTTP/1.1"),
    "a byte beyond ASCII in the address": line(b"GET /livez\xff HTTP/1.1"),
    "NUL in the address": line(b"GET /livez\0 HTTP/1.1"),
    "no Host": line(b"GET /livez HTTP/1.1", b""),
    "two Hosts": GET + HOST + b"\r\n",
    "LF without CR after the first line": b"GET /livez HTTP/1.1\n" + HOST + b"\r\n",
    "LF without CR after a header": GET + b"X: y\nZ: w\r\n\r\n",
    "LF without CR at the end": GET + b"X: y\r\n\n",
    "CR without LF": GET + b"X: y\rZ: w\r\n\r\n",
    "CR twice": GET + b"X: y\r\r\n\r\n",
    "NUL in a value": GET + b"X: a\0b\r\n\r\n",
    "NUL in a name": GET + b"X\0: y\r\n\r\n",
    "a control character in a value": GET + b"X: a\x0bb\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 2\r\n\r\nab",
    "a tab before the colon": GET + b"X\t: y\r\n\r\n",
    "no colon": GET + b"X\r\n\r\n",
    "no name": GET + b": y\r\n\r\n",
    "a header on two lines": GET + b"X: y\r\n z\r\n\r\n",
    "a coding on two lines": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a space as the first header": b"GET /livez HTTP/1.1\r\n X: y\r\n" + HOST + b"\r\n",
    "a length and chunks": CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a list of lengths": POST + b"Content-Length: 0, 0\r\n\r\n",
    **{f"the length {text}": POST + b"Content-Length: %s\r\n\r\n" % text.encode() for text in (
        "", "+0", "-1", "0x0", "0 0", "1e1", "1_0", "\x0b0", "9" * 30,
    )},
    **{f"the coding {text}": POST + b"Transfer-Encoding: %s\r\n\r\n0\r\n\r\n" % text.encode() for text in (
        "", "gzip", "identity", "xchunked", "chunkedx", '"chunked"', "\x0bchunked", "chunked;q=1", "chunked,",
        ",chunked", "gzip, chunked", "chunked, gzip", "chunked, chunked",
    )},
    "two codings": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": line(b"POST /search?id=1 HTTP/1.0", b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
    **{f"the chunk {text!r}": CHUNKED + b"\r\n" + text for text in (
        b"zz\r\n\r\n", b"-1\r\n\r\n", b"+0\r\n\r\n", b"0x0\r\n\r\n", b"0_0\r\n\r\n", b" 0\r\n\r\n", b"\r\n\r\n",
        b"0\n\r\n", b"0\r\r\n\r\n", b"2\r\nab\n0\r\n\r\n", b"2\r\nab0\r\n\r\n", b"2\r\nabcd\r\n0\r\n\r\n",
        b"10000000000000000\r\nab", b"0;a\nb\r\n\r\n", b"0\r\nX Y: z\r\n\r\n", b"0\r\nX: y\n\r\n",
    )},
    "too many tiny chunks": CHUNKED + b"\r\n" + 4000 * b"1\r\na\r\n",
}  # fmt: skip
"""What is not HTTP/1.1, or could be read in two ways."""
TOO_LARGE = {
    "a head without end": GET + b"X: " + bytes(MAX_HEAD).replace(b"\0", b"y"),
    "a chunk's extension": CHUNKED + b"\r\n2;" + 70_000 * b"y",
    "zeros of a chunk's size": CHUNKED + b"\r\n" + 70_000 * b"0",
    "extensions of many chunks": CHUNKED + b"\r\n" + 1000 * (b"1;" + 200 * b"x" + b"\r\na\r\n"),
    "a trailer": CHUNKED + b"\r\n0\r\nX: " + 70_000 * b"y",
    "many trailers": CHUNKED + b"\r\n0\r\n" + 12_000 * b"X: y\r\n",
}
TAKEN = {
    "three requests at once": (3 * WHOLE, [200, 200, 200]),
    "one after an answer that closes": (GET + b"Connection: keep-alive, CLOSE\r\n\r\n" + WHOLE, [200]),
    "HTTP/1.0": (line(b"GET /livez HTTP/1.0", b"") + WHOLE, [200]),
    "HTTP/1.0 that waits for 100": (line(b"POST /search?id=1 HTTP/1.0", HOST + b"Expect: 100-continue\r\n"), [200]),
    "HEAD": (line(b"HEAD /livez HTTP/1.1") + WHOLE, [200, 200]),
    "a body of no use": (GET + b"Content-Length: 3\r\n\r\nabc" + WHOLE, [200, 200]),
    "a body that waits for 100": (POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n", [100]),
    "a refused body": (POST + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n" + 1000 * b"x", [413]),
    "a body behind a wish for HTTP/2": (
        POST + b"Connection: Upgrade\r\nUPGRADE:h2c\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nabc" + WHOLE, [400, 200]
    ),
    "chunks": (CHUNKED + b"\r\n00;a=b\r\nX: y\r\nHost: evil.example\r\n\r\n", [200]),
    "another host in the address": (line(b"GET http://evil.example/livez HTTP/1.1"), [404]),
    "nonsense behind a request": (WHOLE + b"\0\1\r\n\r\n", [200, 400]),
    "200 headers": (GET + 199 * b"X: y\r\n" + b"\r\n", [200]),
    "201 headers": (GET + 200 * b"X: y\r\n" + b"\r\n", [431]),
}  # fmt: skip
"""Requests, and the statuses of their answers."""


@contextmanager
def connected_to(url: str) -> Iterator[socket.socket]:
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
        yield connection


def answers(
    url: str, text: bytes, step: int | None = None, count: int = 1, seconds: float = 30.0
) -> list[tuple[int, bytes]]:
    """Return status and body of each answer.

    Args:
        url: The service.
        text: What to send.
        step: The bytes that are sent at a time (default: all).
        count: The number of answers that are awaited; further ones, for a moment.
        seconds: Time to wait for them.
    """
    received = b""
    with connected_to(url) as connection:
        with suppress(ConnectionError, TimeoutError):  # a service that closes may have answered
            for start in range(0, len(text), step or len(text)):
                connection.sendall(text[start : start + (step or len(text))])
        connection.settimeout(seconds)
        with suppress(ConnectionError, TimeoutError):
            while part := connection.recv(2**16):
                received += part
                if received.count(b"HTTP/1.1 ") >= count and received.endswith((b"\r\n\r\n", b"}", b"]")):
                    connection.settimeout(0.1)
    return list(_split(received))


def _split(received: bytes) -> Iterator[tuple[int, bytes]]:
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        size = int(length[1]) if length and not received.startswith(b"HTTP/1.1 ") else 0  # an answer to HEAD has none
        yield int(head[9:12]), received[:size]
        received = received[size:]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_http_is_refused_once(server: Running, name: str) -> None:
    [(status, body)] = answers(server.url, REFUSED[name])
    assert (status, json.loads(body)["error"]["code"]) == (400, "bad_http")
    if len(REFUSED[name]) < 1000:  # a client that goes on sending may lose the answer
        assert {status for status, _ in answers(server.url, REFUSED[name], step=1)} <= {400}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_heads_and_what_surrounds_chunks_have_a_limit(server: Running, name: str) -> None:
    [(status, body)] = answers(server.url, TOO_LARGE[name])
    assert (status, json.loads(body)["error"]["code"]) == (431, "head_too_large")


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("name", TAKEN)
def test_requests_end_where_they_say(server: Running, name: str, step: int | None) -> None:
    text, statuses = TAKEN[name]
    assert [status for status, _ in answers(server.url, text, step, len(statuses))] == statuses


# The same bytes, read by h11


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request as the application gets it."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    said = json.dumps([scope["method"], target.decode(), headers, body.decode("latin-1")]).encode()
    length = (b"content-length", str(len(said)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": said})


def read_by_h11(text: bytes) -> list[Any]:
    """Return the complete requests at the beginning of the bytes."""
    connection, requests = h11.Connection(h11.SERVER, MAX_HEAD), []
    connection.receive_data(text)
    with suppress(h11.RemoteProtocolError):
        while isinstance(request := connection.next_event(), h11.Request):
            body = b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                break
            target = request.target.decode().removesuffix("?")
            headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers]
            requests.append([request.method.decode(), target, headers, body.decode("latin-1")])
            connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                break
            connection.start_next_cycle()
    return requests


LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
WRITTEN = (
    b"POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab\r\nc" + LAST,
    b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n" + LAST,
    b"GET /a HTTP/1.0\r\nAccept: */*\r\n\r\n" + LAST,
    b"GET /a HTTP/1.1\r\nHost: a\r\nX:  y z \t\r\nExpect: 100-continue\r\n\r\n" + LAST,
)
PARTS = (
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b";", b",", b"\x0b", b"\x7f", b"\xff", b"0", b"3", b"a", b"-",
    b"+", b"0\r\n\r\n", b"3\r\nabc\r\n", b"Content-Length: 3\r\n", b"content-length:5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"transfer-encoding : chunked\r\n", b"Host: b\r\n", b"HTTP/1.0", b"X: y\r\n",
    b"GET /b HTTP/1.1\r\nHost: b\r\n\r\n",
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw requests with up to three parts put in, taken out or replaced."""
    text = draw(st.sampled_from(WRITTEN))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.sampled_from(PARTS)) + text[start + draw(st.sampled_from((0, 0, 1, 2, 5))) :]
    return text


@pytest.mark.slow
def test_another_parser_reads_the_same_requests() -> None:
    """Proxies read what we read: a request that only we see is one that nobody has checked."""
    with answering(echo) as url:

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
        @given(damaged())
        @example(WRITTEN[0])
        @example(WRITTEN[1])
        def check(text: bytes) -> None:
            said = [json.loads(body) for status, body in answers(url, text, seconds=0.2) if status == 200]
            assert said == read_by_h11(text)[: len(said)]

        check()
        assert len(read_by_h11(WRITTEN[0])) == 2
        assert [status for status, _ in answers(url, WRITTEN[0], count=2)] == [200, 200]


# Memory


@pytest.mark.parametrize("more", [WHOLE, bytes(2**16)], ids=["requests", "a body"])
def test_little_is_read_ahead_of_an_answer(more: bytes) -> None:
    """Neither of requests that wait for their turn, nor of a body that the application does not ask for."""

    done = False

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        while not done:
            await asyncio.sleep(0.05)

    first = WHOLE if more == WHOLE else POST + b"Content-Length: 999999999\r\n\r\n"
    with answering(wait) as url, connected_to(url) as connection:
        connection.settimeout(1)
        sent = connection.send(first)
        block = more * (2**20 // len(more))
        with suppress(TimeoutError):
            while sent < 2**28:
                sent += connection.send(block)
        done = True
    assert sent < 2**25, "the buffers of the kernel, and little more"


def test_a_thousand_requests_at_once_are_answered_in_turn() -> None:
    numbers = range(1000)
    text = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in numbers)
    with answering(echo) as url:
        said = answers(url, text + LAST, count=1001)
    assert [json.loads(body)[1] for _, body in said] == [*(f"/{number}" for number in numbers), "/last"]


def test_trailers_are_no_headers() -> None:
    text = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Api-Key: b\r\n\r\n"
    with answering(echo) as url:
        [(_, body)] = answers(url, text, step=1)
    assert [name for name, _ in json.loads(body)[2]] == ["host", "transfer-encoding"]
