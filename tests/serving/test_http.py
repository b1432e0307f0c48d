"""The service over a real connection: what it answers, what it refuses, and that it lives on."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.routing import Route
from starlette.testclient import TestClient

from serving.app import ROUTES, SERVICE, create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import READ_KEYS, Configuration
from serving.gallery import Gallery
from serving.gallery.search import Searcher
from serving.hosts import ANY, hosts_in
from serving.keys import Keys
from tests.serving import toys
from tests.serving.running import Running, serving
from zoo.errors import GalleryError
from zoo.models.load import Embedder

LIMITS = Configuration().limits
TOO_MANY = b"\x89PNG" + bytes(Configuration().max_body + 200_000)


@pytest.fixture
def searcher(gallery_folder: Path) -> Iterator[Searcher]:
    opened = Searcher.open(gallery_folder)
    yield opened
    opened.close()


def search(http: httpx.Client, kind: int = 0, **params: Any) -> list[dict[str, Any]]:
    answer = http.post("/search", files={"image": toys.query(kind)}, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def assert_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message"}
    assert error["code"] == code
    assert error["message"][0].isupper() or code.startswith("invalid")
    assert "Traceback" not in answer.text


def test_search_answers_what_the_gallery_does(http: httpx.Client, gallery_folder: Path, model: Embedder) -> None:
    for kind, label in enumerate(toys.CLASSES):
        results = search(http, kind, k=8)
        with Gallery.open(gallery_folder) as gallery:
            (hits,) = gallery.search(model.embed(toys.query(kind)), 8)
        assert [r["id"] for r in results] == [hit.id for hit in hits]
        np.testing.assert_allclose([r["similarity"] for r in results], [h.similarity for h in hits], atol=1e-5)
        assert {r["label"] for r in results[:3]} == {label}
        assert all(r["thumbnail"] == f"/items/{r['id']}/thumbnail" for r in results)


def test_the_ways_to_ask(http: httpx.Client) -> None:
    wanted = search(http, 2)
    assert len(wanted) == 10, "k is 10 unless given"
    image = toys.query(2)
    asked = [
        http.post("/search", content=image, headers={"content-type": "image/png"}),
        http.post("/search", content=image, headers={"content-type": "application/octet-stream"}),
        http.post("/search", content=image),
        http.post("/search", content=iter([image[:100], image[100:]]), headers={"content-type": "image/*"}),
        http.post("/search", files={"image": ("../../etc/passwd", image, "text/html")}),
        http.post("/search", files={"image": image}, data={"k": "10"}),
    ]
    for answer in asked:
        assert answer.json()["results"] == wanted
    by_item = [http.post("/search?id=5&k=4"), http.post("/search", files={"id": (None, "5"), "k": (None, "4")})]
    assert by_item[0].json()["results"] == by_item[1].json()["results"]
    assert by_item[0].json()["query"] == {"id": 5}
    assert 5 not in [r["id"] for r in by_item[0].json()["results"]]
    assert len(search(http, k=1000)) == 24


def png(width: int, height: int) -> bytes:
    """A black 1-bit PNG of any size, small as a file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(height * (1 + (width + 7) // 8)), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg() -> bytes:
    return toys.encoded(toys.picture(0, np.random.default_rng(0), 300), "JPEG")


def flipped(data: bytes) -> bytes:
    return data[:40] + bytes(255 - byte for byte in data[40:])


BAD_IMAGES = {
    "truncated JPEG": (lambda: jpeg()[: len(jpeg()) // 2], 422, "unreadable_image"),
    "corrupt PNG": (lambda: flipped(toys.query(0)), 422, "unreadable_image"),
    "text": (lambda: b"this is no image", 422, "unreadable_image"),
    "HTML": (lambda: b"<html><script>alert(1)</script></html>", 422, "unreadable_image"),
    "SVG": (lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', 422, "unreadable_image"),
    "zeros": (lambda: bytes(5000), 422, "unreadable_image"),
    "empty": (lambda: b"", 400, "no_image"),
    "bomb": (lambda: png(20_000, 20_000), 413, "image_too_large"),
    "64 megapixels": (lambda: png(8000, 8000), 413, "image_too_large"),
    "long bomb": (lambda: png(2**31 - 1, 1)[:2000], 413, "image_too_large"),
    "too many bytes": (lambda: TOO_MANY, 413, "body_too_large"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_refused_and_the_service_lives_on(http: httpx.Client, name: str) -> None:
    make, status, code = BAD_IMAGES[name]
    image = make()
    assert_refused(http.post("/search", files={"image": ("a.png", image, "image/png")}), status, code)
    assert_refused(http.post("/search", content=image, headers={"content-type": "image/png"}), status, code)
    assert {r["label"] for r in search(http, 0, k=3)} == {toys.CLASSES[0]}


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        ({}, "holds no image. Send it in the field 'image'"),
        ({"json": {"k": 5}}, "holds no image. Send it in the field 'image'"),
        ({"files": {"image": ("a.png", b"")}}, "is empty"),
        ({"files": {"image": (None, "a.png")}}, "with the @"),  # curl -F image=a.png
        ({"files": {"picture": b"x"}}, "no file in the field 'image'; it has: picture"),
    ],
)
def test_who_sends_no_image_reads_what_to_do(http: httpx.Client, request_of: dict[str, Any], says: str) -> None:
    assert says in http.post("/search", **request_of).json()["error"]["message"]


def test_a_body_without_a_length_is_counted(http: httpx.Client) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for start in range(0, len(TOO_MANY), 65536):
            sent += 65536
            yield TOO_MANY[start : start + 65536]

    answer = http.post("/search", content=chunks(), headers={"content-type": "image/png"})
    assert_refused(answer, 413, "body_too_large")
    assert search(http)


def test_an_image_just_over_its_own_limit_is_refused(http: httpx.Client) -> None:
    assert_refused(http.post("/search", files={"image": bytes(LIMITS.max_bytes + 1)}), 413, "image_too_large")


@pytest.mark.parametrize(
    ("request_of", "status", "code"),
    [
        ({"url": "/search"}, 400, "no_image"),
        ({"url": "/search", "files": {"picture": b"x"}}, 400, "no_image"),
        ({"url": "/search", "files": {"image": (None, "text field")}}, 400, "no_image"),
        ({"url": "/search", "files": [("image", b"x")] * 33}, 400, "bad_request"),
        ({"url": "/search?id=1&labels=x"}, 422, "unknown_parameter"),
        ({"url": "/items?lable=x", "method": "GET"}, 422, "unknown_parameter"),
        ({"url": "/items?where=", "method": "GET"}, 422, "invalid_where"),
        ({"url": "/labels?limt=1", "method": "GET"}, 422, "unknown_parameter"),
        ({"url": "/metadata?limt=1", "method": "GET"}, 422, "unknown_parameter"),
        ({"url": "/feedback?itme=1", "method": "GET"}, 422, "unknown_parameter"),
        ({"url": "/search?id=1&min_similarity=2"}, 422, "invalid_min_similarity"),
        ({"url": "/search?id=1&min_similarity=nan"}, 422, "invalid_min_similarity"),
        ({"url": "/search?id=1&min_p=0.5"}, 422, "invalid_value"),
        ({"url": "/search?id=1&where=[1]"}, 422, "invalid_where"),
        ({"url": '/search?id=1&where={"a":{"b":1}}'}, 422, "invalid_value"),
        ({"url": "/search?id=1&rerank=best"}, 422, "invalid_rerank"),
        ({"url": "/search?id=1&crop=0,0,1,1"}, 400, "crop_of_item"),
        ({"url": "/search?crop=0.5,0,0.5,1"}, 422, "invalid_crop"),
        ({"url": "/embed?format=pickle", "content": b"x"}, 422, "invalid_format"),
        ({"url": "/embed"}, 400, "no_image"),
        ({"url": "/evaluate", "method": "GET"}, 404, "no_such_item"),
        ({"url": "/search", "content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "bad_request"),
        (
            {"url": "/search", "content": b"nonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            400,
            "bad_request",
        ),
        ({"url": "/embed", "json": {"id": 1}}, 415, "unsupported_media_type"),
        ({"url": "/embed", "data": {"id": "1"}}, 415, "unsupported_media_type"),
        (
            {"url": "/search", "content": "hello", "headers": {"content-type": "text/plain"}},
            415,
            "unsupported_media_type",
        ),
        ({"url": "/search?k=0&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=1001&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=1000000000&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=-1&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=ten&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=&id=1"}, 422, "invalid_k"),
        ({"url": "/search?k=١&id=1"}, 422, "invalid_k"),
        ({"url": "/search?id=9999"}, 404, "no_such_item"),
        ({"url": "/search?id=../1"}, 404, "no_such_item"),
        ({"url": f"/search?id={'9' * 5000}"}, 404, "no_such_item"),
        ({"url": "/search?id=1", "content": b"x", "headers": {"content-type": "image/png"}}, 400, "image_and_id"),
        ({"url": "/items", "method": "POST"}, 403, "read_only"),
        ({"url": "/search", "method": "GET"}, 405, "method_not_allowed"),
        ({"url": "/items?limit=0", "method": "GET"}, 422, "invalid_limit"),
        ({"url": "/items?limit=201", "method": "GET"}, 422, "invalid_limit"),
        ({"url": "/items?offset=-1", "method": "GET"}, 422, "invalid_offset"),
        ({"url": "/items?sample=0", "method": "GET"}, 422, "invalid_sample"),
        ({"url": "/items?sample=3&label=x", "method": "GET"}, 422, "invalid_sample"),
        ({"url": "/items?limit=3&limit=4", "method": "GET"}, 422, "invalid_limit"),
        ({"url": "/search?id=1&k=3&k=4"}, 422, "invalid_k"),
        ({"url": "/items/9999", "method": "GET"}, 404, "no_such_item"),
        ({"url": "/items/0", "method": "GET"}, 404, "no_such_item"),
        ({"url": "/items/one", "method": "GET"}, 404, "no_such_item"),
        ({"url": f"/items/{2**63}", "method": "GET"}, 404, "no_such_item"),
        ({"url": "/items/9999/thumbnail", "method": "GET"}, 404, "no_such_item"),
        ({"url": "/nowhere", "method": "GET"}, 404, "not_found"),
        ({"url": "/page/../app.py", "method": "GET"}, 404, "not_found"),
        ({"url": "/page/%2e%2e/app.py", "method": "GET"}, 404, "not_found"),
        ({"url": "/page/", "method": "GET"}, 404, "not_found"),
        ({"url": "/docs.json", "method": "GET"}, 404, "not_found"),
        ({"url": "/static_content/index.html", "method": "GET"}, 404, "not_found"),
    ],
)
def test_a_bad_request_is_refused(http: httpx.Client, request_of: dict[str, Any], status: int, code: str) -> None:
    assert_refused(http.request(**{"method": "POST", **request_of}), status, code)


def test_every_picture_that_browsers_send_is_read(http: httpx.Client) -> None:
    picture = toys.picture(1, np.random.default_rng(3))
    transparent = picture.convert("RGBA")
    transparent.putalpha(200)
    for kind, image in (("JPEG", picture), ("WEBP", picture), ("GIF", picture), ("BMP", picture), ("PNG", transparent)):
        answer = http.post("/search", files={"image": toys.encoded(image, kind)}, params={"k": 1})
        assert answer.json()["results"][0]["label"] == "blue checks", kind


def test_good_queries_beside_bad_ones_are_not_disturbed(http: httpx.Client) -> None:
    wanted = {kind: search(http, kind) for kind in range(4)}
    bad = [jpeg()[:500], flipped(toys.query(1)), b"text", png(20_000, 20_000)]

    def ask(number: int) -> bool:
        if number % 2:
            answer = http.post("/search", files={"image": bad[number // 2 % 4]})
            return answer.status_code in (413, 422)
        return search(http, number // 2 % 4) == wanted[number // 2 % 4]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(96)))


def test_items_page_by_page(http: httpx.Client) -> None:
    first, rest = http.get("/items?limit=20").json(), http.get("/items?limit=20&offset=20").json()
    assert (first["total"], len(first["items"]), len(rest["items"])) == (24, 20, 4)
    assert [item["id"] for item in first["items"] + rest["items"]] == list(range(1, 25))
    stripes = http.get("/items", params={"label": toys.HTML_LABEL}).json()
    assert (stripes["total"], {item["label"] for item in stripes["items"]}) == (6, {toys.HTML_LABEL})
    both = http.get("/items", params={"label": [toys.HTML_LABEL, "green disc"]}).json()
    assert (both["total"], len({item["label"] for item in both["items"]})) == (12, 2)
    assert len({item["id"] for item in http.get("/items?sample=10").json()["items"]}) == 10
    item = first["items"][3]
    assert http.get(f"/items/{item['id']}").json() == item


def test_thumbnails_are_pictures_that_a_browser_keeps_while_they_are_right(http: httpx.Client) -> None:
    answer = http.get("/items/2/thumbnail")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(BytesIO(answer.content)) as picture:
        assert picture.size == (28, 28)
    again = http.get("/items/2/thumbnail", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/items/3/thumbnail", headers={"if-none-match": answer.headers["etag"]}).status_code == 200


def test_health_model_and_page(http: httpx.Client, model: Embedder) -> None:
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").status_code == 200
    told = http.get("/model").json()
    assert (told["name"], told["fingerprint"], told["runtime"]) == ("toy-pool", model.card.fingerprint, "onnx")
    assert told["gallery"]["items"] == 24
    settings = Configuration()
    names = ("max_bytes", "max_pixels", "max_images", "max_body", "max_k")
    assert told["limits"] == {name: getattr(settings, name) for name in names}
    for path in ("/", "/docs"):
        answer = http.get(path)
        assert answer.headers["content-type"].startswith("text/html")
        assert "http://" not in answer.text.replace("http://www.w3.org", "")
        assert "https://" not in answer.text
        assert "bentoml" not in answer.text.lower()
    headers = http.get("/").headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"


def test_the_description_is_of_this_service(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    routes = {route.path for route in ROUTES + SERVICE if isinstance(route, Route)} - {"/", "/docs", "/openapi.json"}
    assert set(described["paths"]) == routes
    schemas = described["components"]["schemas"]

    def check(value: Any, schema: dict[str, Any]) -> None:
        if "$ref" in schema:
            check(value, schemas[schema["$ref"].rpartition("/")[2]])
        elif schema.get("type") == "array":
            for one in value:
                check(one, schema["items"])
        elif "properties" in schema:
            assert set(schema["required"]) <= set(value) <= set(schema["properties"])
            for key in value:
                check(value[key], schema["properties"][key])

    for path, answer in {
        "/search": http.post("/search?id=1"),
        "/items": http.get("/items"),
        "/items/{id}": http.get("/items/1"),
        "/model": http.get("/model"),
        "/collections": http.get("/collections"),
    }.items():
        method = described["paths"][path]["post" if path == "/search" else "get"]
        schema = method["responses"]["200"]["content"]["application/json"]["schema"]
        check(answer.json(), schema.get("anyOf", [schema])[0])


HOSTS = {
    "localhost": True,
    "LOCALHOST.:3000": True,
    "127.0.0.1": True,
    "127.3.2.1:80": True,
    "[::1]:3000": True,
    "evil.example": False,
    "localhost.evil.example:3000": False,
    "127.0.0.1.evil.example": False,
    "0.0.0.0:3000": False,
    "192.168.1.2": False,
    "evil.example#localhost": False,
    "[::1]evil.example": False,
    "": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_not_this_machine_is_refused(http: httpx.Client, host: str) -> None:
    for path in ("/", "/items", "/items/1/thumbnail", "/nowhere"):
        answer = http.get(path, headers={"host": host})
        if HOSTS[host]:
            assert answer.status_code == (404 if path == "/nowhere" else 200)
        else:
            assert_refused(answer, 421, "unknown_host")


def test_hosts_can_be_named_and_the_public_is_served_under_any(searcher: Searcher) -> None:
    for known, host, status in (
        (hosts_in("Search.example.org, other"), "search.example.org:443", 200),
        (hosts_in("Search.example.org, other"), "other", 200),
        (hosts_in("Search.example.org, other"), "127.0.0.1", 200),
        (hosts_in("Search.example.org, other"), "evil.example", 421),
        ([ANY], "evil.example", 200),
    ):
        app = create_app(Collections([Collection("", lambda: searcher, Keys.of({READ_KEYS: "k" * 20}))]), hosts=known)
        answer = TestClient(app, f"http://{host}").get("/items", headers={"x-api-key": "k" * 20})
        assert answer.status_code == status


def test_a_server_with_a_read_key_answers_to_any_name_and_to_nobody_without_it(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_SERVE_READ_KEYS", "k" * 20)
    with serving(gallery_folder, "--host", "0.0.0.0", "--max-k", 3) as running:
        url, key = running.url.replace("0.0.0.0", "127.0.0.1"), {"authorization": "Bearer " + "k" * 20}
        assert httpx.get(f"{url}/model", headers={"host": "gpu-box.lan", **key}).status_code == 200
        assert_refused(httpx.get(f"{url}/model"), 401, "key_needed")
        assert_refused(httpx.post(f"{url}/search?id=1&k=4", headers=key), 422, "invalid_k")
        assert b"zoo_requests_total" in httpx.get(f"{url}/metrics", headers=key).content
        assert httpx.get(f"{url}/livez").status_code == httpx.get(f"{url}/readyz").status_code == 200


def test_the_serving_process_holds_no_torch(http: httpx.Client, server: Running) -> None:
    search(http)
    assert "torch" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_a_failure_of_the_service_is_said_in_json_and_gives_nothing_away() -> None:
    def broken() -> Searcher:
        raise GalleryError("/home/somebody/gallery.sqlite: disk I/O error.")

    app = create_app(Collections([Collection("", broken)]))
    answer = TestClient(app, "http://localhost", raise_server_exceptions=False).get("/model")
    assert_refused(answer, 500, "internal_error")
    assert "somebody" not in answer.text
