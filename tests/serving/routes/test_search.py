"""POST /search and POST /embed: queries, filters, pages, re-ranking, texts, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import struct
import tempfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from serving.forms import FORM, MAX_FORM_BYTES
from serving.gallery import NewItem, VectorGallery
from serving.gallery import search as search_module
from serving.gallery.types import NO_PICTURE
from serving.schemas import MAX_QUERY_TEXT
from tests import text_toys
from tests.serving import toys
from tests.serving.running import local_client, settings
from zoo.evaluation.rerank.order import METHODS, SCORES
from zoo.evaluation.rerank.scores import expanded
from zoo.models.load import Embedder

TEXT = "a red chair"


def results(http: TestClient, **values: Any) -> list[dict[str, Any]]:
    answer = http.post("/search", params={"id": 1, "k": 24, **values})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def by_image(http: TestClient, kind: int = 0, **params: Any) -> list[dict[str, Any]]:
    answer = http.post("/search", files={"image": toys.query(kind)}, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return status and code, after a check of the one shape of refusals."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message"}
    return answer.status_code, error["code"]


# Images and items


def test_results_are_the_nearest_items_of_the_gallery(http: TestClient, gallery_folder: Path, model: Embedder) -> None:
    for kind, label in enumerate(toys.CLASSES):
        found = by_image(http, kind, k=8)
        with VectorGallery.open(gallery_folder) as gallery:
            (hits,) = gallery.search(model.embed(toys.query(kind)), 8)
        assert [hit["id"] for hit in found] == [hit.id for hit in hits]
        np.testing.assert_allclose([h["similarity"] for h in found], [h.similarity for h in hits], atol=1e-5)
        assert {hit["label"] for hit in found[:3]} == {label}
        assert all(hit["thumbnail"] == f"/items/{hit['id']}/thumbnail" for hit in found)


def test_ways_to_send_an_image(http: TestClient) -> None:
    expected = by_image(http, 2)
    assert len(expected) == 10, "the default of k"
    image = toys.query(2)
    answers = [
        http.post("/search", content=image, headers={"content-type": "image/png"}),
        http.post("/search", content=image, headers={"content-type": "application/octet-stream"}),
        http.post("/search", content=image),
        http.post("/search", content=iter([image[:100], image[100:]]), headers={"content-type": "image/*"}),
        http.post("/search", files={"image": ("../../etc/passwd", image, "text/html")}),
        http.post("/search", files={"image": image}, data={"k": "10"}),
    ]
    for answer in answers:
        assert answer.json()["results"] == expected
        assert answer.json()["query"] == {"id": None}


def test_an_item_is_left_out_of_its_own_results(http: TestClient) -> None:
    answers = [
        http.post("/search?id=5&k=4"),
        http.post("/search", files={"id": (None, "5"), "k": (None, "4")}),
        http.post("/search", json={"id": 5, "k": 4}),
        http.post("/search", data={"id": 5, "k": 4}),
    ]
    for answer in answers:
        assert answer.json()["query"] == {"id": 5}
        assert answer.json()["results"] == answers[0].json()["results"]
    assert 5 not in [hit["id"] for hit in answers[0].json()["results"]]
    assert len(by_image(http, k=1000)) == 24


def test_formats_that_browsers_send(http: TestClient) -> None:
    picture = toys.picture(1, np.random.default_rng(3))
    transparent = picture.convert("RGBA")
    transparent.putalpha(200)
    for kind, image in (("JPEG", picture), ("WEBP", picture), ("GIF", picture), ("BMP", picture), ("PNG", transparent)):
        answer = http.post("/search", files={"image": toys.encoded(image, kind)}, params={"k": 1})
        assert answer.json()["results"][0]["label"] == "blue checks", kind


def test_a_crop_is_searched_like_the_part_alone(http: TestClient) -> None:
    whole = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 120, 3), np.uint8))
    image, part = toys.encoded(whole), toys.encoded(whole.crop((30, 20, 90, 60)))
    cropped = http.post("/search?crop=0.25,0.25,0.75,0.75", content=image).json()["results"]
    assert cropped == http.post("/search", content=part).json()["results"]
    assert cropped != http.post("/search", content=image).json()["results"]


def test_a_bad_image_among_several_is_isolated(http: TestClient) -> None:
    files = [("image", (name, data)) for name, data in (("a", toys.query(0)), ("b", b"junk"), ("c", toys.query(1)))]
    answer = http.post("/search?k=3", files=files).json()
    assert {"k", "ordered_by", "notes", "milliseconds"} < set(answer)
    searches = answer["searches"]
    assert [search["query"] for search in searches] == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    assert (searches[1]["error"]["code"], "results" in searches[1]) == ("unreadable_image", False)
    for search, kind in ((searches[0], 0), (searches[2], 1)):
        assert search["results"] == http.post("/search?k=3", content=toys.query(kind)).json()["results"]


def test_good_queries_are_not_disturbed_by_bad_ones(http: TestClient) -> None:
    expected = {kind: by_image(http, kind) for kind in range(4)}
    bad = [jpeg()[:500], flipped(toys.query(1)), b"text", png(20_000, 20_000)]

    async def query(client: httpx.AsyncClient, number: int) -> bool:
        image = bad[number // 2 % 4] if number % 2 else toys.query(number // 2 % 4)
        while (answer := await client.post("/search", files={"image": image})).status_code == 429:
            await asyncio.sleep(0.1)  # other programs have the cores
        if number % 2:
            return answer.status_code in (413, 422)
        return answer.json()["results"] == expected[number // 2 % 4]

    async def queries() -> list[bool]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(http.app), base_url="http://localhost") as client:
            return await asyncio.gather(*(query(client, number) for number in range(48)))

    assert all(asyncio.run(queries()))


# Filters, pages, re-ranking


def test_labels_filter(http: TestClient) -> None:
    everything = results(http)
    for labels in ([toys.CLASSES[0]], list(toys.CLASSES[:2]), ["no such label"]):
        assert results(http, label=labels) == [hit for hit in everything if hit["label"] in labels]


def test_offset_and_minimum_similarity(http: TestClient) -> None:
    everything = results(http)
    assert [hit for offset in range(0, 24, 5) for hit in results(http, k=5, offset=offset)] == everything
    least = everything[4]["similarity"]
    assert results(http, min_similarity=least) == [hit for hit in everything if hit["similarity"] >= least]
    assert results(http, min_similarity=-1) == everything


@pytest.mark.parametrize("rerank", METHODS)
def test_pages_with_a_cut_have_every_result_once(http: TestClient, rerank: str) -> None:
    everything = results(http, rerank=rerank)
    least = sorted(hit["similarity"] for hit in everything)[len(everything) // 2]
    expected = [hit["id"] for hit in everything if hit["similarity"] >= least]
    pages = [results(http, rerank=rerank, min_similarity=least, k=3, offset=start) for start in range(0, 24, 3)]
    assert [hit["id"] for page in pages for hit in page] == expected


@pytest.mark.parametrize("rerank", METHODS[1:])
def test_reranked_results_are_the_same_items_in_the_order_of_their_score(http: TestClient, rerank: str) -> None:
    found = results(http, rerank=rerank)
    assert sorted(hit["id"] for hit in found) == sorted(hit["id"] for hit in results(http))
    scores = [hit["rerank_score"] for hit in found]
    assert scores == sorted(scores, reverse=True)
    assert all("rerank_score" not in hit for hit in results(http))


def test_the_score_is_the_methods_and_the_similarity_is_to_the_query(http: TestClient, gallery_folder: Path) -> None:
    with VectorGallery.open(gallery_folder) as gallery:
        query, others = gallery.store.embedding(1), {item: gallery.store.embedding(item) for item in range(2, 25)}
    nearest = [hit["id"] for hit in results(http)]
    near = np.stack([others[item] for item in nearest])
    for method, score in SCORES.items():
        scores = dict(zip(nearest, score(query, near), strict=True))
        for hit in results(http, rerank=method):
            assert hit["rerank_score"] == pytest.approx(scores[hit["id"]], rel=1e-5, abs=1e-9)
            assert hit["similarity"] == pytest.approx(float(others[hit["id"]] @ query), abs=1e-6)
    wider = expanded(query, near[:10])
    for hit in results(http, rerank="expansion"):
        assert hit["rerank_score"] == pytest.approx(float(others[hit["id"]] @ wider), abs=1e-6)
        assert hit["similarity"] == pytest.approx(float(others[hit["id"]] @ query), abs=1e-6)


def test_the_answer_names_its_order_and_unknown_labels_and_keys(http: TestClient) -> None:
    def order_and_notes(**values: Any) -> tuple[str, int]:
        answer = http.post("/search", params={"id": 1, **values}).json()
        return answer["ordered_by"], len(answer["notes"])

    assert order_and_notes() == order_and_notes(label=toys.CLASSES[1]) == ("similarity", 0)
    assert len({order_and_notes(rerank=kind)[0] for kind in METHODS}) == len(METHODS)
    assert order_and_notes(label=["red strips", toys.CLASSES[1], "zzz"])[1] == 2
    assert order_and_notes(where=json.dumps({"yeer": 1908}))[1] == 1
    assert order_and_notes(where=json.dumps({"yeer": None}))[1] == 0, "all items have no such key"
    files = [("image", toys.query(0)), ("image", toys.query(1))]
    several = http.post("/search?label=zzz&rerank=reciprocal", files=files).json()
    assert (len(several["searches"]), len(several["notes"])) == (2, 1)


def test_ten_thousand_labels_may_be_named(http: TestClient) -> None:
    many = [f"label {number}" for number in range(10_000)]
    answer = http.post("/search", json={"id": 1, "label": [*many[1:], toys.CLASSES[0]]})
    assert {hit["label"] for hit in answer.json()["results"]} == {toys.CLASSES[0]}
    assert refusal(http.post("/search", json={"id": 1, "label": [*many, "another"]})) == (422, "invalid_value")


def test_k_is_bounded_by_a_setting(gallery_folder: Path) -> None:
    with local_client(gallery_folder, max_k=3) as client:
        assert len(client.post("/search?id=1").json()["results"]) == 3
        assert refusal(client.post("/search?id=1&k=4")) == (422, "invalid_k")
        assert client.get("/model").json()["limits"]["max_k"] == 3


# Refusals


def png(width: int, height: int) -> bytes:
    """Return a black 1-bit PNG of any size, small as a file."""

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
    "121 megapixels": (lambda: png(11_000, 11_000), 413, "image_too_large"),
    "long bomb": (lambda: png(2**31 - 1, 1)[:2000], 413, "image_too_large"),
    "too large for one image": (lambda: bytes(settings().max_bytes + 1), 413, "image_too_large"),
    "too large for a body": (lambda: bytes(settings().max_body + 200_000), 413, "body_too_large"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_refused(http: TestClient, name: str) -> None:
    make, status, code = BAD_IMAGES[name]
    image = make()
    for form in ({"files": {"image": ("a.png", image, "image/png")}}, {"content": image}):
        assert refusal(http.post("/search", **form)) == (status, code)
        assert refusal(http.post("/embed", **form))[1] == code
    assert {hit["label"] for hit in by_image(http, 0, k=3)} == {toys.CLASSES[0]}


@pytest.mark.parametrize(
    ("request_of", "status", "code"),
    [
        ({}, 400, "no_image"),
        ({"files": {"picture": b"x"}}, 400, "no_image"),
        ({"files": {"image": (None, "text field")}}, 400, "no_image"),
        ({"files": {"image": ("a.png", b"")}}, 400, "no_image"),
        ({"json": {"k": 5}}, 400, "no_image"),
        ({"files": [("image", b"x")] * 33}, 400, "too_many_images"),
        ({"content": b"--x", "headers": {"content-type": "multipart/form-data"}}, 400, "bad_request"),
        ({"content": b"nonsense", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "bad_request"),
        ({"content": "hello", "headers": {"content-type": "text/plain"}}, 415, "unsupported_media_type"),
        ({"params": "id=1&labels=x"}, 422, "unknown_parameter"),
        ({"params": "id=1&min_similarity=2"}, 422, "invalid_min_similarity"),
        ({"params": "id=1&min_similarity=nan"}, 422, "invalid_min_similarity"),
        ({"params": "id=1&min_p=0.5"}, 422, "invalid_value"),
        ({"params": "id=1&where=[1]"}, 422, "invalid_where"),
        ({"params": 'id=1&where={"a":{"b":1}}'}, 422, "invalid_value"),
        ({"params": "id=1&rerank=best"}, 422, "invalid_rerank"),
        ({"params": "id=1&crop=0,0,1,1"}, 400, "crop_without_image"),
        ({"params": "crop=0.5,0,0.5,1"}, 422, "invalid_crop"),
        ({"params": "crop=0,0,1"}, 422, "invalid_crop"),
        ({"params": "crop=0,0,nan,1"}, 422, "invalid_crop"),
        *(
            ({"params": f"k={k}&id=1"}, 422, "invalid_k")
            for k in ("0", "1001", "1000000000", "-1", "ten", "", "١", "1.5")
        ),
        ({"params": "id=1&k=3&k=4"}, 422, "invalid_k"),
        ({"params": "id=1&offset=10001"}, 422, "invalid_offset"),
        ({"params": "id=9999"}, 404, "no_such_item"),
        ({"params": "id=0"}, 404, "no_such_item"),
        ({"params": "id=../1"}, 404, "no_such_item"),
        ({"params": f"id={'9' * 5000}"}, 404, "no_such_item"),
        ({"params": "id=1", "content": b"x", "headers": {"content-type": "image/png"}}, 400, "several_queries"),
        ({"params": "id=abc", "content": b"x", "headers": {"content-type": "image/png"}}, 400, "several_queries"),
        ({"params": "id=abc&crop=0,0,1,1"}, 400, "crop_without_image"),
        ({"params": "id=1&id=2"}, 422, "invalid_id"),
        ({"params": "key=no"}, 404, "no_such_item"),
        ({"params": "key=1"}, 404, "no_such_item"),
        ({"params": "key=no&id=1"}, 400, "several_queries"),
        ({"params": "key=no", "content": b"x", "headers": {"content-type": "image/png"}}, 400, "several_queries"),
        ({"params": "key=no", "files": {"image": b"x"}}, 400, "several_queries"),
        ({"params": "key=no&crop=0,0,1,1"}, 400, "crop_without_image"),
        ({"params": "key=no&text=a"}, 400, "several_queries"),
        ({"params": "key=a&key=b"}, 422, "invalid_key"),
        *(({"params": f"key={key}"}, 422, "invalid_key") for key in ("", "a%0A", "%00", "k" * 257)),
        ({"json": {"key": "no"}}, 404, "no_such_item"),
        ({"json": {"key": 1}}, 422, "invalid_key"),
        ({"json": {"key": ["no"]}}, 422, "invalid_key"),
        ({"params": "id=1&k=0&labels=x"}, 422, "unknown_parameter"),
        ({"json": {"id": True}}, 422, "invalid_id"),
        ({"json": {"id": [1]}}, 422, "invalid_id"),
        ({"json": {"id": {}}}, 422, "invalid_id"),
        ({"json": {"id": 1.5}}, 404, "no_such_item"),
        ({"json": {"id": "abc"}}, 404, "no_such_item"),
    ],
)
def test_a_bad_search_is_refused(http: TestClient, request_of: dict[str, Any], status: int, code: str) -> None:
    assert refusal(http.post("/search", **request_of)) == (status, code)


def test_a_parameter_in_the_form_and_in_the_query_string_is_given_twice(http: TestClient) -> None:
    answer = http.post("/search?k=2", files={"image": toys.query(1)}, data={"k": "1"})
    assert refusal(answer) == (422, "invalid_k")
    assert "given once" in answer.json()["error"]["message"]
    assert "given once" in http.post("/search?id=1&id=2").json()["error"]["message"]


def test_an_unknown_parameter_is_refused_with_the_known_ones(http: TestClient) -> None:
    for path, known in (("/search?item=1", "id"), ("/embed?item=1", "format"), ("/items?item=1", "sample")):
        answer = http.get(path) if path.startswith("/items") else http.post(path, content=toys.query(1))
        assert refusal(answer) == (422, "unknown_parameter")
        assert f" {known}," in answer.json()["error"]["message"].replace(".", ",")


# Embeddings


def test_embeddings_in_every_format_are_the_models(http: TestClient, model: Embedder) -> None:
    queries = [toys.query(i) for i in range(3)]
    expected = model.embed(queries)
    files = [("image", (f"{i}.png", data)) for i, data in enumerate(queries)]
    answer = http.post("/embed", files=files).json()
    assert (answer["model"], answer["dim"]) == (model.card.name, model.dim)
    np.testing.assert_array_equal(np.array(answer["embeddings"], np.float32), expected)
    coded = http.post("/embed?format=base64", files=files).json()["embeddings"]
    np.testing.assert_array_equal([np.frombuffer(base64.b64decode(row), "<f4") for row in coded], expected)
    array = http.post("/embed?format=npy", files=files)
    assert array.headers["content-type"] == "application/x-npy"
    np.testing.assert_array_equal(np.load(BytesIO(array.content), allow_pickle=False), expected)
    assert (array.headers["X-Model"], array.headers["X-Model-Fingerprint"]) == (answer["model"], answer["fingerprint"])
    described = http.get("/openapi.json").json()["paths"]["/embed"]["post"]["responses"]["200"]
    assert {*described["headers"]} == {"X-Model", "X-Model-Fingerprint"}
    assert {*described["content"]} == {"application/json", "application/x-npy"}


@pytest.mark.parametrize(
    ("request_of", "status", "code"),
    [
        ({"params": "format=pickle", "content": b"x"}, 422, "invalid_format"),
        ({"params": "k=3", "content": b"x"}, 422, "unknown_parameter"),
        ({}, 400, "no_image"),
        ({"json": {"id": 1}}, 422, "unknown_parameter"),
        ({"data": {"id": "1"}}, 422, "unknown_parameter"),
        ({"data": {"format": "npy"}}, 400, "no_image"),
        ({"files": [("image", toys.query(0)), ("image", ("bad.png", b"junk"))]}, 422, "unreadable_image"),
    ],
)
def test_a_bad_embedding_request_is_refused(
    http: TestClient, request_of: dict[str, Any], status: int, code: str
) -> None:
    answer = http.post("/embed", **request_of)
    assert refusal(answer) == (status, code)
    if code == "unreadable_image":
        assert "image 2 (bad.png)" in answer.json()["error"]["message"]


# Images in JSON


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def test_an_image_in_json_is_searched_by_as_a_file_is(http: TestClient) -> None:
    image, other = toys.query(2), toys.query(1)
    expected = by_image(http, 2, k=5, label=toys.CLASSES[2])
    options = {"k": 5, "label": [toys.CLASSES[2]]}
    for text in (encoded(image), f"data:image/png;base64,{encoded(image)}", base64.encodebytes(image).decode()):
        assert http.post("/search", json={"image": text, **options}).json()["results"] == expected
    several = http.post("/search", json={"image": [encoded(image), encoded(b"junk"), encoded(other)], **options}).json()
    assert [search.get("results", search.get("error", {}).get("code")) for search in several["searches"]] == [
        expected, "unreadable_image", by_image(http, 1, k=5, label=toys.CLASSES[2]),
    ]  # fmt: skip
    cropped = by_image(http, 2, crop="0.1,0.1,0.9,0.9")
    assert (
        http.post("/search", json={"image": encoded(image), "crop": [0.1, 0.1, 0.9, 0.9]}).json()["results"] == cropped
    )


def test_images_in_json_are_embedded_as_files_are(http: TestClient) -> None:
    images = [toys.query(0), toys.query(3)]
    expected = http.post("/embed", files=[("image", image) for image in images]).json()
    assert http.post("/embed", json={"image": [encoded(image) for image in images]}).json() == expected
    assert http.post("/embed?format=json", json={"image": encoded(images[0])}).json()["embeddings"] == [
        expected["embeddings"][0]
    ]


def test_results_carry_the_metadata_that_are_asked_for(gallery_folder: Path, tmp_path: Path) -> None:
    prices = {number: {"price": 10 * number, "title": f"No. {number}", "tags": ["a", {"b": None}]} for number in (1, 2)}
    with local_client(Path(shutil.copytree(gallery_folder, tmp_path / "g")), "write-key-of-this-test") as client:
        for number, metadata in prices.items():
            client.patch(f"/items/{number}", json={"metadata": metadata}).raise_for_status()

        def carried(**body: Any) -> dict[int, Any]:
            hits = client.post("/search", json={"id": 3, "k": 23, **body}).json()["results"]
            assert len(hits) == 23
            return {hit["id"]: hit.get("metadata") for hit in hits}

        assert set(carried().values()) == {None}
        assert set(carried(fields=[]).values()) == {None}
        chosen, everything = carried(fields=["price", "unknown"]), carried(fields="*")
        assert {number: chosen.pop(number) for number in prices} == {n: {"price": 10 * n} for n in prices}
        assert {number: everything.pop(number) for number in prices} == prices
        assert [*chosen.values(), *everything.values()] == [{}] * 42
        plain = client.post("/search?id=3&k=23&fields=price&fields=title").json()["results"]
        assert next(hit["metadata"] for hit in plain if hit["id"] == 1) == {"price": 10, "title": "No. 1"}
        parts = client.post("/search?fields=title&k=24", files=[("image", toys.query(0))] * 2).json()["searches"]
        assert all({hit["id"]: hit["metadata"] for hit in part["results"]}[2] == {"title": "No. 2"} for part in parts)
        assert refusal(client.post("/search", json={"id": 3, "fields": ["a"] * 101})) == (422, "invalid_fields")
        assert refusal(client.post("/search", json={"id": 3, "fields": [1]})) == (422, "invalid_fields")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"image": "https://example.org/a.png"}, 422, "image_address"),
        ({"image": "file:///etc/passwd"}, 422, "image_address"),
        ({"image": "data:image/png,abc"}, 422, "invalid_image"),
        ({"image": "???"}, 422, "invalid_image"),
        ({"image": "QUJ"}, 422, "invalid_image"),
        ({"image": "QUI=QUJD"}, 422, "invalid_image"),
        ({"image": "\ud800"}, 400, "invalid_form"),
        ({"image": "äöü"}, 422, "invalid_image"),
        ({"image": 5}, 422, "invalid_image"),
        ({"image": [5]}, 422, "invalid_image"),
        ({"image": {"url": "x"}}, 422, "invalid_image"),
        ({"image": ""}, 400, "no_image"),
        ({"image": None}, 400, "no_image"),
        ({"image": []}, 400, "no_image"),
        ({"image": ["QUJD"] * 33}, 400, "too_many_images"),
        ({"image": encoded(b"junk")}, 422, "unreadable_image"),
        ({"images": encoded(toys.query(0))}, 422, "unknown_parameter"),
    ],
)
def test_a_bad_image_in_json_is_refused(http: TestClient, body: Any, status: int, code: str) -> None:
    for path in ("/search", "/embed"):
        answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert refusal(answer) == (status, code), path


# Texts


def sources(answer: httpx.Response) -> list[tuple[str, float]]:
    assert answer.status_code == 200, answer.text
    return [(hit["source"], hit["similarity"]) for hit in answer.json()["results"]]


def test_every_way_to_send_a_text(texts: TestClient, towers: Embedder, pictures: Path) -> None:
    """The expected similarities are those of the tower as NumPy computes it."""
    files = sorted(path for path in pictures.rglob("*") if path.is_file())
    similarities = towers.embed(files) @ text_toys.expected([TEXT], towers.dim)[0]
    order = np.argsort(-similarities, kind="stable")[:7]
    answers = [
        texts.post("/search", json={"text": TEXT, "k": 7}),
        texts.post("/search", json={"text": [TEXT], "k": "7", "label": None}),
        texts.post("/search", data={"text": TEXT, "k": 7}),
        texts.post("/search", files={"text": (None, TEXT), "k": (None, "7")}),
        texts.post("/search", params={"text": TEXT, "k": 7}),
        texts.post("/search?k=7", json={"text": TEXT.upper()}),
    ]
    for answer in answers:
        found = sources(answer)
        assert [source for source, _ in found] == [str(files[i].relative_to(pictures)) for i in order]
        np.testing.assert_allclose([similarity for _, similarity in found], similarities[order], atol=1e-5)
    assert answers[0].json()["query"] == {"id": None, "text": TEXT, "truncated": False}
    assert {hit["p_same"] for hit in answers[0].json()["results"]} == {None}


def test_filters_pages_and_reranking_of_texts(texts: TestClient) -> None:
    everything = sources(texts.post("/search", json={"text": TEXT, "k": 24}))
    labels = [toys.CLASSES[0], toys.CLASSES[2]]
    chosen = sources(texts.post("/search", json={"text": TEXT, "k": 24, "label": labels}))
    assert chosen == [hit for hit in everything if hit[0].rpartition("/")[0] in labels]
    assert sources(texts.post("/search", json={"text": TEXT, "k": 5, "offset": 3})) == everything[3:8]
    least = everything[4][1]
    cut = sources(texts.post("/search", json={"text": TEXT, "k": 24, "min_similarity": least}))
    assert cut == [hit for hit in everything if hit[1] >= least]
    assert sources(texts.post("/search", json={"text": TEXT, "where": {"colour": "red"}})) == []
    for rerank in METHODS[1:]:
        again = sources(texts.post("/search", json={"text": TEXT, "k": 24, "rerank": rerank}))
        assert sorted(source for source, _ in again) == sorted(source for source, _ in everything)


def test_a_long_text_is_truncated(texts: TestClient) -> None:
    long = texts.post("/search", json={"text": "a red chair on the beach in rain"})
    short = texts.post("/search", json={"text": "a red chair on the beach"})
    assert (long.json()["query"]["truncated"], short.json()["query"]["truncated"]) == (True, False)
    assert sources(long) == sources(short)


def test_several_texts_and_an_empty_one(texts: TestClient) -> None:
    queries = [TEXT, "  ", "blue checks"]
    searches = texts.post("/search", json={"text": queries, "k": 3}).json()["searches"]
    assert [search["query"]["text"] for search in searches] == queries
    assert (searches[1]["query"], searches[1]["error"]["code"]) == ({"text": "  "}, "invalid_text")
    for search in (searches[0], searches[2]):
        alone = texts.post("/search", json={"text": search["query"]["text"], "k": 3}).json()
        assert (search["results"], search["query"]) == (alone["results"], alone["query"])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"text": ""}, 422, "invalid_text"),
        ({"text": " \n"}, 422, "invalid_text"),
        ({"text": 17}, 422, "invalid_text"),
        ({"text": ["a", 17]}, 422, "invalid_text"),
        ({"text": {"a": 1}}, 422, "invalid_text"),
        ({"text": True}, 422, "invalid_text"),
        ({"text": "half \ud800"}, 400, "invalid_form"),
        ({"text": TEXT, "where": {"a": "half \ud800"}}, 400, "invalid_form"),
        ({"text": TEXT, "\ud800": "x"}, 400, "invalid_form"),
        ({"text": []}, 400, "no_image"),
        ({}, 400, "no_image"),
        ([TEXT], 400, "invalid_form"),
        ({"text": "a" * (MAX_QUERY_TEXT + 1)}, 413, "text_too_long"),
        ({"text": ["a"] * 33}, 400, "too_many_values"),
        ({"text": TEXT, "id": 1}, 400, "several_queries"),
        ({"text": TEXT, "crop": "0,0,1,1"}, 400, "crop_without_image"),
        ({"text": TEXT, "min_p": 0.5}, 422, "min_p_without_picture"),
        ({"text": TEXT, "k": True}, 422, "invalid_k"),
        ({"text": TEXT, "k": [5]}, 422, "invalid_k"),
        ({"text": TEXT, "k": {"a": 5}}, 422, "invalid_k"),
        ({"text": TEXT, "k": 2.5}, 422, "invalid_k"),
        ({"text": TEXT, "min_similarity": float("nan")}, 422, "invalid_min_similarity"),
        ({"text": TEXT, "min_similarity": True}, 422, "invalid_min_similarity"),
        ({"text": TEXT, "label": 5}, 422, "invalid_label"),
        ({"text": TEXT, "where": [1]}, 422, "invalid_where"),
        ({"text": TEXT, "txet": "x"}, 422, "unknown_parameter"),
    ],
)
def test_a_bad_json_query_is_refused(texts: TestClient, body: Any, status: int, code: str) -> None:
    answer = texts.post("/search", content=json.dumps(body), headers={"content-type": "application/json"})
    assert refusal(answer) == (status, code)


@pytest.mark.parametrize(
    ("media_type", "code", "bodies"),
    [
        ("application/json", "invalid_form", (b"\xff\xfe", b"[" * 100_000, b"", b'{"k": 1e999999}x')),
        ("application/x-www-form-urlencoded", "invalid_form", (b"text=\xff", b"text=%ff", b"a=1&" * 99)),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    texts: TestClient, media_type: str, code: str, bodies: tuple[bytes, ...]
) -> None:
    for body in bodies:
        answer = texts.post("/search", content=body, headers={"content-type": media_type})
        assert refusal(answer) == (400, code)
    both = texts.post("/search", files={"image": toys.query(0), "text": (None, TEXT)})
    assert refusal(both) == (400, "several_queries")


def test_a_large_form_is_refused(texts: TestClient) -> None:
    large = texts.post("/search", content=b" " * (MAX_FORM_BYTES + 1), headers={"content-type": FORM})
    assert refusal(large) == (413, "body_too_large")


def test_images_of_a_form_are_not_written_to_disk(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file would hold a user's image, and a service with a read-only file system could not make one."""

    def refuse(*options: object, **more: object) -> None:
        raise OSError("no temporary file")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    image = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 900, 3), np.uint8)).save(image, "PNG")
    assert len(image.getvalue()) > 2 * 2**20
    assert http.post("/search", files={"image": image.getvalue()}).status_code == 200


def test_a_model_without_a_text_tower(http: TestClient) -> None:
    for text in (TEXT, [TEXT, ""]):
        answer = http.post("/search", json={"text": text})
        assert refusal(answer) == (422, "no_text_tower")
        assert "clip-b32" in answer.json()["error"]["message"]


@pytest.mark.parametrize("charset", ["punycode", "undefined", "utf-16", "latin-1", "idna"])
def test_a_form_is_read_in_utf_8_alone(http: TestClient, charset: str) -> None:
    """Some codecs of Python take quadratic time, and others fail."""
    body = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\n' + 2000 * b"a-" + b"\r\n--x--\r\n"
    answer = http.post(
        "/search", content=body, headers={"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_parameters_are_read_in_one_pass(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for each of many names would look at all of them each time."""
    monkeypatch.delattr("starlette.datastructures.ImmutableMultiDict.getlist")
    assert http.get("/stats?" + "&".join(f"n{number}" for number in range(5000))).status_code == 422


@pytest.mark.parametrize("value", [{"label": ["x"] * 10_001}, {"where": {str(number): 1 for number in range(10_001)}}])
def test_countless_values_are_refused_before_they_are_looked_at(http: TestClient, value: dict[str, Any]) -> None:
    answer = http.post("/search", json={"id": 1, **value})
    assert answer.status_code == 422


def test_a_large_image_in_json_is_decoded_as_it_was_encoded(http: TestClient) -> None:
    """Its base64 is decoded in pieces."""
    image = toys.encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)))
    assert len(image) > 2**20
    expected = http.post("/embed", content=image).json()
    assert http.post("/embed", json={"image": encoded(image)}).json() == expected
    openai = http.post("/v1/embeddings", json={"input": encoded(image)}).json()
    assert openai["data"][0]["embedding"] == expected["embeddings"][0]


# Bounds of an answer


def filled(path: Path, model: Embedder, labels: list[str], metadata: dict[str, Any]) -> Path:
    """Make a gallery of random vectors without pictures."""
    rows = np.random.default_rng(0).normal(size=(len(labels), toys.DIM)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    with VectorGallery.create(path, model.card, str(model.folder)) as gallery:
        gallery.add(
            [
                NewItem(f"{number}.png", row, NO_PICTURE, f"{number:064x}", label, metadata)
                for number, (row, label) in enumerate(zip(rows, labels, strict=True))
            ]
        )
    return path


def test_groups_are_found_among_a_bounded_number_of_images(
    tmp_path: Path, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is a plain loop over all results."""
    monkeypatch.setattr(search_module, "GROUPED", 150)
    labels = ["of most"] * 500 + [f"of few {number}" for number in range(6)]
    with local_client(filled(tmp_path / "g", model, labels, {})) as client:
        everything = results(client, k=505)
        for k, offset in ((1, 0), (2, 0), (4, 1), (300, 0)):
            found = client.post("/search", params={"id": 1, "k": k, "offset": offset, "group_by": "label"}).json()
            end = k + offset
            expected: dict[str, int] = {}
            for hit in everything[: end + 150]:
                expected.setdefault(hit["label"], hit["id"])
            assert [hit["id"] for hit in found["results"]] == list(expected.values())[offset:end]
            assert bool(found["notes"]) == (len(expected) < end), (k, found["notes"])
        assert client.post("/search", params={"id": 1, "k": 505, "group_by": "label"}).json()["notes"] == []


def test_an_answer_is_bounded(tmp_path: Path, model: Embedder) -> None:
    """32 queries for all metadata would make an answer of 50 MB here, and of 500 MB with a thousand results."""
    metadata = {f"field {number}": "x" * 1500 for number in range(10)}
    with local_client(filled(tmp_path / "g", model, ["label"] * 100, metadata)) as client:
        files = [("image", toys.query(0))] * 32
        whole = client.post("/search", params={"k": 100, "fields": "*"}, files=files[:2])
        assert whole.status_code == 200
        assert [len(part["results"]) for part in whole.json()["searches"]] == [100, 100]
        assert whole.json()["searches"][0]["results"][0]["metadata"] == metadata
        assert refusal(client.post("/search", params={"k": 100, "fields": "*"}, files=files)) == (
            422,
            "answer_too_large",
        )
        assert client.post("/search", params={"k": 100, "fields": "field 1"}, files=files).status_code == 200
