"""/items/by-key over HTTP: any key, replaced images, and what is refused."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from serving.client import Client
from serving.gallery.search import Searcher
from serving.schemas import PutItem
from tests.serving.clients import Awaited
from tests.serving.gallery.test_keys import KEYS, NO_KEYS
from tests.serving.gallery.test_store_keys import code, noise
from tests.serving.running import serving, writing_to
from zoo.errors import ItemNotFoundError, ServiceError, UsageError

pytestmark = pytest.mark.slow

KEY = "w" * 20


@pytest.fixture
def service(path: Path) -> Iterator[httpx.Client]:
    searcher = Searcher.open(path)
    with writing_to(searcher, KEY) as client:
        yield client
    searcher.close()


@pytest.fixture
def client(service: httpx.Client) -> Iterator[Client]:
    with Client(str(service.base_url), key=KEY) as opened:
        yield opened


def put(service: httpx.Client, path: str, picture: bytes, **fields: str) -> httpx.Response:
    return service.put(f"/items/by-key/{path}", files={"image": ("a.png", picture)}, data=fields)


def test_an_item_is_created_replaced_described_and_removed(service: httpx.Client) -> None:
    made = put(service, "sku/1", noise(1), label="wren", metadata='{"year": 1908}')
    item = made.json()
    assert (made.status_code, item.pop("status"), item.pop("notes"), item["key"]) == (201, "created", [], "sku/1")
    assert (item["label"], item["metadata"], item["source"]) == ("wren", {"year": 1908}, "a.png")
    assert service.get("/items/by-key/sku/1").json() == service.get(f"/items/{item['id']}").json() == item
    again = put(service, "sku/1", noise(1), label="wren", metadata='{"year": 1908}')
    assert (again.status_code, again.json()["status"], again.json()["change"]) == (200, "unchanged", item["change"])
    updated = put(service, "sku/1", noise(1)).json()
    assert (updated["status"], updated["id"], updated["label"], updated["metadata"]) == (
        "updated",
        item["id"],
        None,
        {},
    )
    replaced = service.put("/items/by-key/sku%2F1", content=noise(2), headers={"content-type": "image/png"})
    assert (replaced.status_code, replaced.json()["status"]) == (200, "replaced")
    assert (replaced.json()["source"], replaced.json()["id"]) == ("sku/1", item["id"])
    found = service.post("/search", files={"image": ("q.png", noise(2))}, params={"k": 1}).json()["results"]
    assert [(hit["key"], hit["similarity"] > 0.9999) for hit in found] == [("sku/1", True)]
    changed = service.patch("/items/by-key/sku/1", json={"label": "robin", "key": "sku/2"}).json()
    assert (changed["label"], changed["key"], changed["id"]) == ("robin", "sku/2", replaced.json()["id"])
    assert code(service.get("/items/by-key/sku/1")) == (404, "no_such_item")
    assert service.patch(f"/items/{changed['id']}", json={"key": None}).json()["key"] is None
    assert service.patch(f"/items/{changed['id']}", json={"key": "sku/3"}).json()["key"] == "sku/3"
    assert service.delete("/items/by-key/sku/3").json() == {"removed": changed["id"]}
    for method in ("GET", "DELETE"):
        assert code(service.request(method, "/items/by-key/sku/3")) == (404, "no_such_item")
    assert code(service.patch("/items/by-key/sku/3", json={"label": "x"})) == (404, "no_such_item")
    assert service.get("/stats").json()["items"] == 24


def test_any_key_is_its_own_path(client: Client, service: httpx.Client) -> None:
    for number, key in enumerate(KEYS):
        assert client.put(key, noise(number), label=str(number)).status == "created"
    for number, key in enumerate(KEYS):
        item = client.item(key)
        assert (item.key, item.label) == (key, str(number))
        assert client.search(noise(number), k=1)[0].key == key
        assert client.describe(key, metadata={"n": number}).metadata == {"n": number}
        assert client.thumbnail(key) == client.thumbnail(item.id)
        assert client.duplicates(key) == client.duplicates(item.id)
        path = "/items/by-key/" + quote(key, safe="/" if ".." not in key else "").replace("..", "%2E%2E")
        connection = http.client.HTTPConnection(service.base_url.host, service.base_url.port or 0, timeout=60)
        connection.request("GET", path, headers={"x-api-key": KEY})
        with connection.getresponse() as answer:
            assert (answer.status, key) == (200, key), "slashes may be encoded or not"
        connection.close()
    for key in KEYS:
        client.remove(key)
        for call in (client.item, client.thumbnail, client.duplicates):
            with pytest.raises(ItemNotFoundError):
                call(key)
    assert service.get("/stats").json()["items"] == 24


def test_the_item_with_a_key_is_searched_by(client: Client, service: httpx.Client) -> None:
    for number, key in enumerate(KEYS):
        item = client.put(key, noise(number)).id
        by_id = service.post("/search", params={"id": item, "k": 5}).json()
        assert by_id["query"] == {"id": item}
        assert item not in [hit["id"] for hit in by_id["results"]]
        for request in (
            {"params": {"key": key, "k": 5}},
            {"json": {"key": key, "k": 5}},
            {"data": {"key": key, "k": 5}},
            {"files": {"key": (None, key), "k": (None, "5")}},
        ):
            answer = service.post("/search", **request).json()  # type: ignore[arg-type]
            assert (answer["query"], answer["results"]) == ({"id": item, "key": key}, by_id["results"])
        hits = client.search(item=key, k=5, rerank="expansion")
        assert hits == Awaited(str(service.base_url)).search(item=item, k=5, rerank="expansion")
        assert hits == Awaited(str(service.base_url)).search(item=key, k=5, rerank="expansion")
    client.remove(KEYS[0])
    for kind in (client, Awaited(str(service.base_url))):
        with pytest.raises(ItemNotFoundError):
            kind.search(item=KEYS[0])
        for no_key in NO_KEYS:
            with pytest.raises(UsageError):
                kind.search(item=no_key)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_what_can_be_no_key_is_refused(service: httpx.Client, client: Client, method: str) -> None:
    bodies = {"PUT": {"files": {"image": ("a.png", noise(1))}}, "PATCH": {"json": {"label": "x"}}}
    for path in ("", "k" * 257, "%00", "a%0A", "a%0Db", "%7F", "%C2%85", "%FF", "%ED%A0%80", "a%C3"):
        answer = service.request(method, f"/items/by-key/{path}", **bodies.get(method, {}))  # type: ignore[arg-type]
        assert code(answer) == (422, "invalid_key"), path
    assert service.request(method, "/items/by-key/a%0Ab").status_code == 404, "no route has lines"
    for key in NO_KEYS:
        with pytest.raises(UsageError):
            client.item(key)
    assert service.get("/stats").json()["items"] == 24


def test_bad_requests_leave_the_item_unchanged(service: httpx.Client, client: Client) -> None:
    kept: PutItem = client.put("k", noise(1), label="wren")
    client.put("other", noise(2))
    two = [("image", ("a.png", noise(3))), ("image", ("b.png", noise(4)))]
    path = "/items/by-key/k"
    assert code(service.put(path, files=two)) == (400, "too_many_images")
    assert code(service.put(path)) == (400, "no_image")
    assert code(put(service, "k", b"not an image")) == (422, "unreadable_image")
    assert code(put(service, "k", noise(3), metadata="[]")) == (422, "invalid_metadata")
    assert code(put(service, "k", noise(3), key="l")) == (422, "unknown_parameter")
    assert code(service.put(path, content=noise(3), headers={"content-type": "text/csv"})) == (
        415,
        "unsupported_media_type",
    )
    assert code(service.patch(path, json={"key": "other"})) == (409, "key_taken")
    assert code(service.patch(path, json={"key": "a\n"})) == (422, "invalid_key")
    assert code(service.patch(path, json={})) == (422, "invalid_body")
    assert code(service.post(path)) == (405, "method_not_allowed")
    for request in (httpx.put, httpx.delete):
        answer = request(str(service.base_url).rstrip("/") + path)
        assert code(answer) == (401, "key_needed")
    item = client.item("k")
    assert (item.id, item.label, item.content_sha256) == (kept.id, "wren", kept.content_sha256)
    with pytest.raises(ServiceError) as refused:
        client.describe("k", key="other")
    assert (refused.value.status, refused.value.code) == (409, "key_taken")


@pytest.mark.slow  # starts a service of two workers
def test_every_worker_finds_a_replaced_image_at_the_next_query(path: Path) -> None:
    options = ("--workers", 2)
    with (
        serving(path, *options, environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as running,
        Client(running.url, key=KEY) as client,
    ):
        for number in range(6):
            client.put("hot", noise(number))
            for _ in range(6):  # each from a new connection, which another worker may accept
                with Client(running.url) as other:
                    (hit,) = other.search(noise(number), k=1)
                    assert (hit.key, hit.similarity > 0.9999) == ("hot", True)
                    assert number == 0 or "hot" not in {
                        hit.key for hit in other.search(noise(number - 1), k=1) if hit.similarity > 0.9999
                    }
