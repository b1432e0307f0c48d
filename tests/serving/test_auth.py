from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from serving.app import create_app
from serving.auth import Authentication, TrustedHosts, host_name, is_loopback
from serving.dependencies import Collection, Collections
from serving.gallery.search import Searcher
from serving.keys import COOKIE, Keys, client_of, request_key
from serving.model_swap import CurrentSearcher
from serving.settings import READ_KEYS
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import local_client, settings
from zoo.errors import UsageError

READER, WRITER, OLD = "r" * 20, "w" * 20, "o" * 20
BOTH = {"read_keys": f"{READER}, {OLD}", "write_keys": WRITER}


def unopened() -> Searcher:
    raise AssertionError("this test needs no gallery")


def collections(*names: str, **keys: str) -> Collections:
    chosen = settings(**keys)
    return Collections([Collection(name, CurrentSearcher(unopened), Keys.load(chosen, name)) for name in names or [""]])


@contextmanager
def service(served: Collections) -> Iterator[TestClient]:
    """Yield a client of an application that answers every path that the middleware lets through."""
    app = FastAPI(openapi_url=None)

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def inside(path: str) -> str:
        return path

    with TestClient(Authentication(app, served), "http://localhost") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [bearer(READER), bearer(OLD), bearer(WRITER), {"X-API-Key": READER}])
def test_a_read_key_and_a_write_key_may_read(headers: dict[str, str]) -> None:
    with service(collections(**BOTH)) as client:
        assert client.post("/search", headers=headers).json() == "search"
        assert client.get("/items", headers=headers).json() == "items"


@pytest.mark.parametrize("headers", [{}, bearer("x" * 20), bearer(""), bearer(READER[:-1]), {"Authorization": READER}])
def test_without_a_valid_key_nothing_is_read(headers: dict[str, str]) -> None:
    with service(collections(**BOTH)) as client:
        for method, path in (("GET", "/items"), ("HEAD", "/items"), ("POST", "/search"), ("OPTIONS", "/items")):
            answer = client.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert READER not in answer.text
        answer = client.get("/items", headers=headers)
        assert answer.json()["error"]["code"] in ("key_needed", "wrong_key")


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/livez", "/readyz", "/page/app.js"])
def test_the_page_and_the_probes_need_no_key(path: str) -> None:
    with service(collections(**BOTH)) as client:
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_needs_a_write_key(method: str) -> None:
    with service(collections(**BOTH)) as client:
        for headers, status in ((bearer(WRITER), 200), (bearer(READER), 403), (bearer("x" * 20), 401), ({}, 401)):
            assert client.request(method, "/items/1", headers=headers).status_code == status


def test_the_cookie_of_the_page_reads_and_never_writes() -> None:
    with service(collections(**BOTH)) as client:
        client.cookies.set(COOKIE, READER)
        assert client.get("/items").status_code == 200
        client.cookies.set(COOKIE, WRITER)
        assert client.post("/items").status_code == 401


def test_without_keys_everybody_reads_and_nobody_writes() -> None:
    with service(collections()) as client:
        assert client.post("/search").status_code == 200
        refused = client.post("/items", headers=bearer(WRITER))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
    with service(collections(write_keys=WRITER)) as client:
        assert client.post("/search").status_code == 200
        assert client.post("/items", headers=bearer(WRITER)).status_code == 200
        assert client.post("/items", headers=bearer(READER)).status_code == 401


def test_a_key_of_one_collection_is_refused_at_another() -> None:
    own = {"ZOO_SERVE_READ_KEYS_BIRDS": SecretStr(READER), "ZOO_SERVE_WRITE_KEYS_BIRDS": SecretStr(WRITER)}
    chosen = settings(read_keys=OLD).model_copy(update={"collection_keys": own})
    served = Collections(
        [Collection(name, CurrentSearcher(unopened), Keys.load(chosen, name)) for name in ("birds", "cars")]
    )
    with service(served) as client:
        for key, name, status in (
            (READER, "birds", 200),
            (READER, "cars", 401),
            (OLD, "birds", 200),
            (OLD, "cars", 200),
        ):
            assert client.get(f"/collections/{name}/items", headers=bearer(key)).status_code == status
        assert client.post("/collections/birds/items", headers=bearer(WRITER)).status_code == 200
        assert client.post("/collections/cars/items", headers=bearer(WRITER)).status_code == 401
        assert client.post("/collections/cars/items", headers=bearer(OLD)).status_code == 403


def test_paths_of_named_collections() -> None:
    with service(collections("birds", "cars")) as client:
        assert client.get("/collections/birds/items/3").json() == "items/3"
        for path, code in (
            ("/items", "name_a_collection"),
            ("/collections/fish/items", "no_such_collection"),
            ("/collections/birds/metrics", "not_found"),
            ("/collections/birds/collections", "not_found"),
        ):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
        for path in ("/", "/docs", "/openapi.json", "/collections", "/metrics", "/livez", "/page/app.js"):
            assert client.get(path).status_code == 200


@pytest.mark.parametrize("key", ["short", "ä" * 30, f"{READER},short"])
def test_a_key_that_can_be_guessed_is_refused_at_the_start(key: str) -> None:
    with raises(UsageError, "invalid-keys"):
        Keys.load(settings(read_keys=key))


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text: str) -> None:
    keys = Keys.load(settings(**BOTH))
    assert keys.may_read(text) == (text in (READER, OLD, WRITER))
    assert keys.may_write(text) == (text == WRITER)


def test_clients_are_counted_by_valid_key_or_by_address() -> None:
    keys = Keys.load(settings(**BOTH))

    def counted_as(key: str = "") -> str:
        headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
        return client_of({"type": "http", "headers": headers, "client": ("1.2.3.4", 5)}, keys.has)

    assert counted_as() == "1.2.3.4"
    assert len({counted_as(key) for key in (READER, WRITER, OLD)} | {"1.2.3.4"}) == 4
    assert READER not in counted_as(READER)
    assert READER not in repr(keys)
    assert counted_as("x" * 20) == "1.2.3.4"


@pytest.mark.parametrize("raw", [b"zoo-key=\xff\xfe", b"=;;;=", b"a=b; zoo-key", b"zoo-key=" + b"x" * 5000])
def test_a_broken_cookie_is_no_key(raw: bytes) -> None:
    with service(collections(**BOTH)) as client:
        assert client.get("/items", headers=[("Cookie", raw)]).status_code == 401


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost.:3000", "localhost"),
        ("[::1]:3000", "::1"),
        ("example.org:", "example.org"),
        ("::1", ""),
        ("a b:c", ""),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.7", False),
        ("::ffff:192.168.1.7", False),
        ("fe80::1%eth0", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_addresses(name: str, local: bool) -> None:
    assert is_loopback(name) == local


def test_a_foreign_host_name_is_misdirected() -> None:
    app = FastAPI(openapi_url=None)
    for path in ("/", "/livez", "/readyz", "/collections/birds/readyz"):
        app.add_api_route(path, page)
    for hosts, asked, status in (
        ("", "localhost:3000", 200),
        ("", "attacker.example", 421),
        ("photos.example, other", "Photos.Example:443", 200),
        ("photos.example", "photos.example.attacker", 421),
        ("*", "anything", 200),
    ):
        client = TestClient(TrustedHosts(app, hosts), "http://localhost")
        answer = client.get("/", headers={"host": asked})
        assert answer.status_code == status
        if status == 421:
            assert answer.json()["error"]["code"] == "unknown_host"
        for probe in ("/livez", "/readyz", "/collections/birds/readyz"):
            assert client.get(probe, headers={"host": "10.0.0.7"}).status_code == 200


async def page() -> str:
    return "page"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "status"),
    [
        (("127.0.0.1", 3000), 200),
        (("::ffff:127.0.0.1", 3000), 200),
        (("/run/dml-zoo.sock", None), 200),
        (None, 200),
        (("192.168.1.7", 3000), 403),
        (("::ffff:192.168.1.7", 3000), 403),
    ],
)
def test_without_read_keys_only_loopback_addresses_are_answered(
    server: tuple[str, int | None] | None, status: int
) -> None:
    def asked(served: Collections) -> int:
        app = create_app(settings(hosts="*"), served)

        async def at_server(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "server": server}, receive, send)

        answer = TestClient(at_server, "http://localhost").get("/docs")
        if answer.status_code == 403:
            assert answer.json()["error"]["code"] == "public_without_key"
            assert READ_KEYS in answer.json()["error"]["message"]
        assert TestClient(at_server, "http://localhost").get("/livez").status_code == 200
        return answer.status_code

    assert asked(collections()) == asked(collections(write_keys=WRITER)) == asked(collections("a", "b")) == status
    assert asked(collections(read_keys=READER)) == 200


# Cookies, names and foreign pages


@pytest.mark.parametrize("filling", ['a="\\', "a=b; ", 'zoo-key="\\1', "=", ";", '"', "zoo-key="])
@pytest.mark.parametrize("path", ["/items", "/livez", "/"])
def test_a_large_cookie_takes_no_time(filling: str, path: str) -> None:
    """Python's own parser takes 31 s for some of these, in the event loop, before the key is known to be wrong."""
    cookie = (filling * 60_000)[:60_000]
    with service(collections(**BOTH)) as client:
        start = time.perf_counter()
        for _ in range(10):
            assert client.get(path, headers={"Cookie": cookie}).status_code == (401 if path == "/items" else 200)
        assert time.perf_counter() - start < 2


def test_only_a_small_cookie_is_read() -> None:
    with service(collections(**BOTH)) as client:
        for others, status in ((1000 - len(READER), 200), (1100, 401)):
            cookie = f"other={'x' * (others - 15)}; {COOKIE}={READER}"
            assert client.get("/items", headers={"Cookie": cookie}).status_code == status


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=16, max_size=60))
def test_the_cookie_of_the_page_may_hold_any_key(key: str) -> None:
    """The page quotes a key as RFC 6265 wants it; Python's own parser is the oracle."""
    quoted = '"' + "".join(letter if letter.isalnum() else f"\\{ord(letter):03o}" for letter in key) + '"'
    oracle = SimpleCookie(f"{COOKIE}={quoted}")[COOKIE].value
    headers = [(b"cookie", f"first=1; {COOKIE}={quoted}; last=2".encode())]
    assert request_key({"type": "http", "headers": headers}) == oracle == key


def test_a_name_of_a_collection_is_for_those_who_may_read_it() -> None:
    """A request without a key, and one with a key of another collection, gets one answer at any name."""
    own = {"ZOO_SERVE_READ_KEYS_BIRDS": SecretStr(READER), "ZOO_SERVE_WRITE_KEYS_CARS": SecretStr(WRITER)}
    chosen = settings(read_keys=OLD).model_copy(update={"collection_keys": own})
    served = Collections(
        [Collection(name, CurrentSearcher(unopened), Keys.load(chosen, name)) for name in ("birds", "cars")]
    )
    with service(served) as client:
        for headers in ({}, bearer("x" * 20), bearer(READER), {"Cookie": f"{COOKIE}={READER}"}):
            for method in ("GET", "HEAD", "POST", "PATCH", "DELETE"):
                for path in ("items", "search", "metrics", "", "page/app.js", "docs", "livez", "readyz", "nothing"):
                    known, unknown = (
                        client.request(method, f"/collections/{name}/{path}", headers=headers, follow_redirects=False)
                        for name in ("cars", "fish")
                    )
                    assert known.status_code == unknown.status_code, (method, path)
                    assert known.text == unknown.text.replace("fish", "cars")
        assert client.get("/collections/fish/items", headers=bearer(OLD)).status_code == 404
        assert client.get("/collections/FISH/items").json()["error"]["code"] == "no_such_collection"


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example:3000"},
]
OWN = [
    {},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "http://localhost"},
]


@pytest.mark.slow
def test_a_page_of_another_site_reaches_only_what_is_open(gallery_folder: Path) -> None:
    """A form or a picture of any page in a browser on this machine would otherwise let the service compute."""
    with local_client(gallery_folder, write_keys=WRITER) as client:
        for headers in FOREIGN:
            for method, path in (
                ("POST", "/search?id=1"),
                ("GET", "/map"),
                ("GET", "/items/1/thumbnail"),
                ("POST", "/items"),
            ):
                answer = client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_page"), (headers, path)
            for path in ("/", "/docs", "/livez", "/readyz", "/page/app.js"):
                assert client.get(path, headers=headers).status_code == 200
            # Another site's script cannot send this header, unless a proxy in front of the service allows it.
            assert client.get("/items", headers=headers | bearer(WRITER)).status_code == 200
        for headers in OWN:
            assert client.post("/search?id=1", headers=headers).status_code == 200


def test_pages_of_allowed_origins_search_and_show_thumbnails(gallery_folder: Path) -> None:
    shop, other = "https://shop.example", "https://evil.example"
    cross = {"Sec-Fetch-Site": "cross-site"}
    with local_client(gallery_folder, write_keys=WRITER, origins=f"{shop},http://localhost:8080") as client:
        for origin in (shop, "http://localhost:8080"):
            answer = client.post("/search?id=1", headers={"Origin": origin, **cross})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
            refused = client.post("/items", headers={"Origin": origin, **cross})
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, origin)
        asked = {
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        asked |= {"Origin": shop, **cross}
        allowed = client.options("/items/1", headers=asked)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, shop)
        assert "PATCH" in allowed.headers["access-control-allow-methods"]
        # A picture's request names its page only as the referrer.
        shown = client.get("/items/1/thumbnail", headers={"Referer": f"{shop}/chairs?page=2", **cross})
        assert (shown.status_code, shown.headers.get_list("cross-origin-resource-policy")) == (200, ["cross-origin"])
        for headers in (
            {"Origin": other},
            {"Origin": "null"},
            {"Referer": f"{other}/?{shop}"},
            {},
            {"Origin": f"{shop}.evil"},
            {"Origin": f"{shop}:8443"},
            {"Origin": f"{shop}@evil.example"},
            {"Origin": f"{shop}, {other}"},
            {"Origin": "http://shop.example"},
            {"Origin": "https://evil-shop.example"},
            {"Origin": "https://www.shop.example"},
            {"Referer": f"{shop}@evil.example/"},
            {"Referer": f"{shop}.evil.example/"},
            {"Referer": "https://evil-shop.example/"},
        ):
            answer = client.post("/search?id=1", headers=headers | cross)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_page"), headers
            assert "access-control-allow-origin" not in answer.headers
        assert (
            "access-control-allow-origin" not in client.options("/items/1", headers=asked | {"Origin": other}).headers
        )
    with local_client(gallery_folder, origins="*") as client:
        assert client.post("/search?id=1", headers={"Origin": other, **cross}).status_code == 200
    with local_client(gallery_folder) as client:
        own = client.get("/items/1/thumbnail").headers
        assert own.get_list("cross-origin-resource-policy") == ["same-origin"]
        assert "access-control-allow-origin" not in client.get("/items", headers={"Origin": "http://localhost"}).headers


def test_origins_are_compared_as_browsers_send_them() -> None:
    given = "https://SHOP.example:443/, http://localhost:80,http://[::1]:8080,https://xn--mller-kva.example:80"
    assert settings({"ZOO_SERVE_ORIGINS": given}).allowed_origins == {
        "https://shop.example", "http://localhost", "http://[::1]:8080", "https://xn--mller-kva.example:80",
    }  # fmt: skip


@pytest.mark.parametrize("origins", ["https://shop.example", "*"])
def test_pages_may_use_every_method_and_never_send_credentials(gallery_folder: Path, origins: str) -> None:
    """The cookie of the service's own page is a credential: no page of another origin reads an answer to it."""
    shop = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
    with local_client(gallery_folder, origins=origins, **BOTH) as client:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "authorization"}
            allowed = client.options("/items/1", headers=shop | asked)
            assert (allowed.status_code, allowed.headers["access-control-allow-headers"]) == (200, "authorization")
            assert method in allowed.headers["access-control-allow-methods"].split(", ")
            assert "access-control-allow-credentials" not in allowed.headers
        for own in ({}, {"Cookie": f"{COOKIE}={READER}"}, bearer(READER)):
            assert "access-control-allow-credentials" not in client.get("/items", headers=shop | own).headers
        foreign = shop | {"Access-Control-Request-Method": "TRACE"}
        assert client.options("/items/1", headers=foreign).status_code == 400


@pytest.mark.parametrize("origins", ["https://shop.example", "*"])
def test_a_page_can_read_why_it_was_refused(
    gallery_folder: Path, origins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the header, a browser tells a script only that something failed."""

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError

    limits = {"rate": 0.001, "burst": 14, "max_body": 10_000, "read_keys": READER, "write_keys": WRITER}
    with local_client(gallery_folder, origins=origins, **limits) as client:
        page, key = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}, bearer(READER)
        assert client.get("/readyz").status_code == 200
        monkeypatch.setattr(Searcher, "embed", fail)
        for status, method, path, sent in (
            (401, "GET", "/items", {}),
            (401, "GET", "/items/1/thumbnail", {}),
            (401, "POST", "/v1/embeddings", {"json": {"input": "a"}}),
            (400, "POST", "/search", {"headers": key}),
            (403, "DELETE", "/items/1", {"headers": key}),
            (404, "GET", "/items/999", {"headers": key}),
            (404, "GET", "/nothing", {}),
            (404, "GET", "/page/nothing.js", {}),
            (405, "PUT", "/items/1", {"headers": bearer(WRITER)}),
            (413, "POST", "/search", {"headers": key, "content": bytes(100_000)}),
            (415, "POST", "/search", {"headers": key | {"Content-Type": "text/html"}, "content": b"a"}),
            (422, "GET", "/items?limit=-1", {"headers": key}),
            (500, "POST", "/embed", {"headers": key, "content": toys.query(0)}),
            (429, "GET", "/items", {"headers": key}),
        ):
            answer = client.request(method, path, **sent | {"headers": page | sent.get("headers", {})})
            if status == 429:
                while answer.status_code == 200:
                    answer = client.request(method, path, headers=page | key)
            allowed = answer.headers["access-control-allow-origin"]
            assert (answer.status_code, allowed) == (status, "*" if origins == "*" else page["Origin"]), path
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
            assert answer.headers["x-request-id"]
            assert answer.json()["error"]["message"]


def test_pages_at_the_names_of_the_service_are_its_own(gallery_folder: Path) -> None:
    with local_client(gallery_folder, hosts="photos.example") as client:
        for origin, status in (("https://photos.example:8443", 200), ("https://photo.example", 403)):
            assert client.post("/search?id=1", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(
    "path", ["/", "/items/", "/search/", "/page", "/docs/", "/collections/birds", "//evil.example/"]
)
def test_no_answer_leads_to_the_host_of_the_request(gallery_folder: Path, path: str) -> None:
    for galleries in (gallery_folder, [f"birds={gallery_folder}", f"cars={gallery_folder}"]):
        with local_client(galleries, hosts="*") as client:
            answer = client.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
            assert "//" not in answer.headers.get("location", "")
            assert answer.status_code in (200, 307, 404)


def test_no_cache_keeps_an_answer(gallery_folder: Path) -> None:
    with local_client(gallery_folder, write_keys=WRITER) as client:
        image = toys.query(0)
        for method, path, body in (
            ("GET", "/items", b""),
            ("GET", "/stats", b""),
            ("GET", "/model", b""),
            ("GET", "/openapi.json", b""),
            ("GET", "/nothing", b""),
            ("GET", "/readyz", b""),
            ("POST", "/search?id=1", b""),
            ("POST", "/embed", image),
            ("POST", "/embed?format=npy", image),
            ("POST", "/search?id=x", b""),
        ):
            answer = client.request(method, path, content=body)
            assert answer.headers.get_list("cache-control") == ["no-store"], path
        for path in ("/", "/docs", "/page/app.js"):
            assert client.get(path).headers.get_list("cache-control") == ["no-cache"]
        assert len(client.get("/items/1/thumbnail").headers.get_list("cache-control")) == 1
