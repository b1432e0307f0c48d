from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.keys import COOKIE, KeyGuard, Keys, client_of
from zoo.errors import UsageError

READER, WRITER, OLD = "r" * 20, "w" * 20, "o" * 20


async def _answer(request) -> PlainTextResponse:
    return PlainTextResponse("inside")


APP = Starlette(
    routes=[
        Route("/", _answer),
        Route("/search", _answer, methods=["POST"]),
        Route("/items", _answer, methods=["GET", "POST"]),
        Route("/items/1", _answer, methods=["DELETE"]),
    ]
)


def client(**environment: str) -> TestClient:
    return TestClient(KeyGuard(APP, lambda scope: Keys.of(environment)))


BOTH = {READ_KEYS: f"{READER}, {OLD}", WRITE_KEYS: WRITER}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [bearer(READER), bearer(OLD), bearer(WRITER), {"X-API-Key": READER}])
def test_a_key_opens_what_is_read(headers):
    service = client(**BOTH)
    assert service.post("/search", headers=headers).text == "inside"
    assert service.get("/items", headers=headers).text == "inside"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("headers", [{}, bearer("x" * 20), bearer(""), bearer(READER[:-1]), {"Authorization": READER}])
def test_without_it_nothing_is_read(headers, method):
    answer = client(**BOTH).request(method, "/items" if method == "GET" else "/search", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] in ("key_needed", "wrong_key")
    assert READER not in answer.text


def test_the_page_opens_without_a_key():
    assert client(**BOTH).get("/").text == "inside"


def test_writing_takes_a_write_key():
    service = client(**BOTH)
    assert service.delete("/items/1", headers=bearer(WRITER)).text == "inside"
    assert service.post("/items", headers=bearer(READER)).status_code == 403
    assert service.post("/items", headers=bearer("x" * 20)).status_code == 401
    assert service.post("/items").status_code == 401


def test_the_cookie_of_the_page_reads_and_never_writes():
    service = client(**BOTH)
    service.cookies.set(COOKIE, READER)
    assert service.get("/items").text == "inside"
    service.cookies.set(COOKIE, WRITER)
    assert service.post("/items").status_code == 401


def test_without_keys_all_may_read_and_nobody_writes():
    service = client()
    assert service.post("/search").text == "inside"
    refused = service.post("/items", headers=bearer(WRITER))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")


def test_with_a_write_key_alone_all_may_read():
    service = client(**{WRITE_KEYS: WRITER})
    assert service.post("/search").text == "inside"
    assert service.post("/items", headers=bearer(WRITER)).text == "inside"
    assert service.post("/items", headers=bearer(READER)).status_code == 401


@pytest.mark.parametrize("key", ["short", "ä" * 30, f"{READER},short"])
def test_a_key_that_can_be_guessed_is_refused_at_the_start(key):
    with pytest.raises(UsageError, match="token_urlsafe"):
        Keys.of({READ_KEYS: key})


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    keys = Keys.of(BOTH)
    assert keys.may_read(text) == (text in (READER, OLD, WRITER))
    assert keys.may_write(text) == (text == WRITER)


def test_clients_are_told_apart_by_key_and_the_key_is_not_kept():
    keys, anyone = Keys.of(BOTH), {"headers": [], "client": ("1.2.3.4", 5)}

    def counted_as(key: str) -> str:
        return client_of({**anyone, "headers": [(b"authorization", b"Bearer " + key.encode())]}, keys.has)

    assert client_of(anyone, keys.has) == "1.2.3.4"
    assert len({counted_as(key) for key in (READER, WRITER, OLD)} | {"1.2.3.4"}) == 4
    assert READER not in counted_as(READER)
    assert READER not in repr(keys)
    assert counted_as("x" * 20) == "1.2.3.4", "a key of nobody makes nobody new"


@pytest.mark.parametrize("raw", [b"zoo-key=\xff\xfe", b"=;;;=", b"a=b; zoo-key", b"zoo-key=" + b"x" * 5000])
def test_any_cookie_header_is_survived(raw):
    answer = client(**BOTH).get("/items", headers=[("Cookie", raw)])
    assert answer.status_code == 401
