"""Both clients against what answers otherwise than the service, late, or not at all."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from serving.client import calls
from serving.client.core import Core
from zoo.errors import ServiceError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


def ok(body: bytes) -> bytes:
    return HEAD + f"{len(body)}\r\n\r\n".encode() + body


BUSY = b"HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
UNREADY = BUSY.replace(b"429", b"503")
STRANGERS = {
    b"": "does not answer",
    b"\x00\x01\x02 nonsense\r\n\r\n": "does not answer",
    HEAD + b"99\r\n\r\n{}": "does not answer",
    ok(b"<html>"): "not as the search service",
    ok(b"\xff"): "not as the search service",
    ok(b"{}"): "not as the search service",
    ok(b"[]"): "not as the search service",
    ok(b'{"total": 0, "items":'): "not as the search service",
    b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n": "302 Found",
    b"HTTP/1.1 500 Gone wrong\r\nContent-Length: 2\r\n\r\n{}": "500 Gone wrong",
}


def whole_request(connection: socket.socket) -> bytes:
    """To hang up on bytes that were not read would take the answer from the client as well."""
    asked = connection.recv(65536)
    announced = re.search(rb"content-length: ([0-9]+)", asked, re.IGNORECASE)
    while announced and len(asked.partition(b"\r\n\r\n")[2]) < int(announced[1]):
        asked += connection.recv(65536)
    return asked


@contextmanager
def stranger(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Gives each connection in turn one of `answers` and hangs up; its URL, and what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                asked.append(whole_request(connection))
                connection.sendall(answer.replace(b"Content-Length", b"Connection: close\r\nContent-Length"))

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        served.result(timeout=10)


@pytest.mark.parametrize("said", STRANGERS)
def test_what_is_no_answer_is_explained(kind: Any, said: bytes) -> None:
    with stranger(said, said) as (url, _):
        client = kind(url, retries=0)
        with pytest.raises(ServiceError, match=STRANGERS[said]):
            client.items()
        client.ready()


def test_what_can_pass_by_itself_is_tried_again(kind: Any) -> None:
    with stranger(b"", BUSY, UNREADY, ok(b'{"total": 0, "items": []}')) as (url, asked):
        assert kind(url, key="k" * 20).items().total == 0
    assert len(asked) == 4
    assert all(b"Bearer " + b"k" * 20 in one for one in asked)
    with stranger(b"", UNREADY, ok(b'{"new": 0, "items": [], "refused": []}')) as (url, asked):
        assert kind(url).add(b"bytes").new == 0  # by content: adding it twice adds it once
    assert len(asked) == 3
    with stranger(BUSY, BUSY, BUSY) as (url, asked), pytest.raises(ServiceError, match="429"):
        kind(url, retries=2).items()


@pytest.mark.parametrize("answer", [b"", UNREADY])
def test_a_write_that_may_have_been_done_is_not_repeated(kind: Any, answer: bytes) -> None:
    for write in ("remove", "describe"):
        with stranger(answer) as (url, asked), pytest.raises(ServiceError):
            getattr(kind(url), write)(1, **({"label": "x"} if write == "describe" else {}))
        assert len(asked) == 1
    with stranger(BUSY, ok(b'{"removed": 1}')) as (url, asked):
        kind(url).remove(1)  # refused at the door: nothing was done


@pytest.mark.usefixtures("quick")
def test_pauses() -> None:
    asks, write, one = calls.items(), calls.remove(1), Core("http://h", 30, 3)
    for answer, expected in ((("429", "7"), 7.0), (("503", "30"), 30.0), (("503", "31"), None), (("500", "1"), None)):
        assert one.wait(asks, 1, httpx.Response(int(answer[0]), headers={"retry-after": answer[1]})) == expected
    assert one.wait(asks, 4, httpx.Response(429)) is None
    assert one.wait(asks, 1, httpx.ReadTimeout("")) is None
    refused = httpx.ConnectError("")
    for call in (asks, write):
        assert [0.5 <= (one.wait(call, n, refused) or 0) / (0.001 * 2 ** (n - 1)) <= 1.5 for n in (1, 2, 3)] == [
            True
        ] * 3


def test_no_client_waits_for_ever(kind: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = kind(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
        with pytest.raises(ServiceError, match="timed out"):
            client.items()
        assert not client.ready()
