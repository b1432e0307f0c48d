"""Who is let in at all, over real connections: by the rate of a client, and by where the service is asked."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import READ_KEYS, WRITE_KEYS, Configuration
from serving.cores import Cores
from serving.gallery.search import Searcher
from serving.keys import Keys
from tests.serving.running import answering

READER, WRITER = "r" * 20, "w" * 20
RATED = Configuration(rate=0.01, burst=5)
GUESS = itertools.count()


def guessed() -> dict[str, str]:
    return {"x-api-key": f"guess number {next(GUESS):06}"}


def opened() -> Searcher:
    raise AssertionError("nothing here needs the gallery")


def collections(*names: str, **environment: str) -> Collections:
    return Collections([Collection(name, opened, Keys.of(environment)) for name in names or [""]])


def statuses(url: str, path: str, headers: Callable[[], dict[str, str]] = dict) -> list[int]:
    return [httpx.get(f"{url}{path}", headers=headers()).status_code for _ in range(7)]


def test_made_up_keys_are_counted_as_the_address_they_come_from() -> None:
    with answering(create_app(collections(), RATED)) as url:
        assert statuses(url, "/livez", guessed) == [200] * 5 + [429] * 2
        assert httpx.get(f"{url}/livez").status_code == 429, "it is the same client"


@pytest.mark.parametrize(("names", "path", "wrong"), [((), "/items", 401), (("a", "b"), "/collections/c", 404)])
def test_guessing_keys_has_its_limit(names: tuple[str, ...], path: str, wrong: int) -> None:
    served = collections(*names, **{READ_KEYS: READER, WRITE_KEYS: WRITER})
    with answering(create_app(served, RATED)) as url:
        assert statuses(url, path, guessed) == [wrong] * 5 + [429] * 2
        for key in (READER, WRITER):
            assert statuses(url, "/docs", lambda key=key: {"x-api-key": key}) == [200] * 5 + [429] * 2


def outside_address() -> str:
    """One of this machine that is not loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(asked.getsockname()[0])


def test_without_a_read_key_nobody_is_answered_at_an_address_that_others_reach() -> None:
    address = outside_address()
    for served, status in (
        (collections(), 403),
        (collections(**{WRITE_KEYS: WRITER}), 403),
        (collections("a", "b"), 403),
        (collections(**{READ_KEYS: READER}), 200),
    ):
        with answering(create_app(served, hosts=["*"]), address) as url:
            answer = httpx.get(f"{url}/docs")
            assert answer.status_code == status
            if status == 403:
                assert answer.json()["error"]["code"] == "public_without_key"
                assert READ_KEYS in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (("127.0.0.1", 3000), 200),
        (("127.8.8.8", 3000), 200),
        (("::1", 3000), 200),
        (("::ffff:127.0.0.1", 3000), 200),
        (("/run/dml-zoo.sock", None), 200),
        (None, 200),
        (("192.168.1.7", 3000), 403),
        (("::ffff:192.168.1.7", 3000), 403),
        (("fe80::1%eth0", 3000), 403),
        (("a-name", 3000), 403),
    ],
)
def test_what_counts_is_the_address_and_not_the_name_asked_for(server: tuple[str, int] | None, status: int) -> None:
    app = create_app(collections())

    async def at_server(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "server": server}, receive, send)

    assert TestClient(at_server, "http://localhost").get("/docs").status_code == status


def test_what_needs_a_core_is_refused_while_images_wait_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Cores, "is_behind", lambda self, seconds: asked.append(seconds) or True)
    app = create_app(collections(**{WRITE_KEYS: WRITER}), Configuration(queue_seconds=0.5))
    client = TestClient(app, "http://localhost", headers={"x-api-key": WRITER}, raise_server_exceptions=False)
    for path in ("/search", "/embed", "/items"):
        assert client.post(path).json()["error"]["message"] == "Too many images wait. Try again in a second."
    for method, path in (("DELETE", "/items/1"), ("PATCH", "/items/1"), ("POST", "/feedback"), ("GET", "/items")):
        assert client.request(method, path).status_code != 429
    assert asked == [0.5] * 3
