"""/items, /labels and /metadata: pages, samples, thumbnails, adding, changing and removing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from serving.gallery import NewItem, VectorGallery
from serving.gallery.types import NO_PICTURE
from serving.routes.items import stored_item
from tests.serving import toys
from tests.serving.running import local_client
from zoo.models.load import Embedder


def noise(seed: int) -> bytes:
    return toys.encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)))


def add(service: TestClient, *images: bytes, **fields: Any) -> httpx.Response:
    files = [("image", (f"{i}.png", data)) for i, data in enumerate(images)]
    return service.post("/items", files=files, data=fields)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# Reading


def test_items_page_by_page(http: TestClient) -> None:
    first, rest = http.get("/items?limit=20").json(), http.get("/items?limit=20&offset=20").json()
    assert set(first) == {"total", "offset", "limit", "items", "notes"}
    assert (first["total"], len(first["items"]), len(rest["items"])) == (24, 20, 4)
    assert [item["id"] for item in first["items"] + rest["items"]] == list(range(1, 25))
    item = first["items"][3]
    assert http.get(f"/items/{item['id']}").json() == item
    assert item["thumbnail"] == f"/items/{item['id']}/thumbnail"


def test_items_by_label_and_at_random(http: TestClient) -> None:
    stripes = http.get("/items", params={"label": toys.HTML_LABEL}).json()
    assert (stripes["total"], {item["label"] for item in stripes["items"]}) == (6, {toys.HTML_LABEL})
    both = http.get("/items", params={"label": [toys.HTML_LABEL, "green disc"]}).json()
    assert (both["total"], len({item["label"] for item in both["items"]})) == (12, 2)
    sample = http.get("/items?sample=10").json()
    assert (set(sample), sample["total"]) == ({"total", "items"}, 24)
    assert len({item["id"] for item in sample["items"]}) == 10


def test_notes_name_unknown_labels_and_keys(http: TestClient) -> None:
    for label, count in (("red strips", 1), (toys.CLASSES[1], 0)):
        assert len(http.get("/items", params={"label": label}).json()["notes"]) == count
    assert len(http.get("/items", params={"where": '{"yeer": 1908}'}).json()["notes"]) == 1


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/items?lable=x", 422, "unknown_parameter"),
        ("/items?where=", 422, "invalid_where"),
        ("/items?where=[]", 422, "invalid_where"),
        ("/items?limit=0", 422, "invalid_limit"),
        ("/items?limit=201", 422, "invalid_limit"),
        ("/items?limit=3&limit=4", 422, "invalid_limit"),
        ("/items?offset=-1", 422, "invalid_offset"),
        ("/items?sample=0", 422, "invalid_sample"),
        ("/items?sample=3&label=x", 422, "invalid_sample"),
        ("/items/9999", 404, "no_such_item"),
        ("/items/0", 404, "no_such_item"),
        ("/items/one", 404, "no_such_item"),
        (f"/items/{2**63}", 404, "no_such_item"),
        ("/items/9999/thumbnail", 404, "no_such_item"),
        ("/labels?limt=1", 422, "unknown_parameter"),
        ("/labels?limit=10001", 422, "invalid_limit"),
        ("/metadata?limt=1", 422, "unknown_parameter"),
        ("/metadata?limit=1&limit=2", 422, "invalid_limit"),
    ],
)
def test_a_bad_request_is_refused(http: TestClient, path: str, status: int, code: str) -> None:
    assert refusal(http.get(path)) == (status, code)


def test_a_thumbnail_is_cached_while_its_content_is_the_same(http: TestClient) -> None:
    answer = http.get("/items/2/thumbnail")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["cache-control"] == "private, no-cache"
    with Image.open(BytesIO(answer.content)) as picture:
        assert picture.size == (28, 28)
    again = http.get("/items/2/thumbnail", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/items/3/thumbnail", headers={"if-none-match": answer.headers["etag"]}).status_code == 200


def test_labels_are_counted(http: TestClient) -> None:
    counts = http.get("/labels").json()
    assert counts == {"total": 4, "labels": [{"label": label, "items": 6} for label in sorted(toys.CLASSES)]}
    assert http.get("/labels?limit=1").json() == {"total": 4, "labels": counts["labels"][:1]}


# Writing


def test_an_added_item_is_found_at_once(service: TestClient, written_folder: Path, model: Embedder) -> None:
    answer = add(service, noise(1), label="noise", source="camera 1", metadata='{"year": 1908, "tags": ["a"]}')
    assert (answer.status_code, answer.json()["new"]) == (201, 1)
    (item,) = answer.json()["items"]
    assert (item["label"], item["source"], item["metadata"]) == ("noise", "camera 1", {"year": 1908, "tags": ["a"]})
    best = service.post("/search?k=1", content=noise(1)).json()["results"][0]
    assert (best["id"], best["similarity"]) == (item["id"], pytest.approx(1, abs=1e-6))
    with VectorGallery.open(written_folder) as gallery:  # as another process would
        np.testing.assert_allclose(gallery.store.embedding(item["id"]), model.embed(noise(1))[0], atol=1e-6)
    assert service.get(item["thumbnail"]).headers["content-type"] == "image/png"


def test_the_same_content_is_the_same_item(service: TestClient) -> None:
    first = add(service, noise(2)).json()
    again = add(service, noise(2), label="other")
    assert (again.status_code, again.json()["new"]) == (200, 0)
    assert again.json()["items"] == first["items"]


def test_a_bad_image_among_good_ones_is_named(service: TestClient) -> None:
    answer = add(service, noise(3), b"junk", noise(4))
    assert (answer.status_code, answer.json()["new"]) == (201, 2)
    (refused,) = answer.json()["refused"]
    assert (refused["number"], refused["name"], refused["error"]["code"]) == (1, "1.png", "unreadable_image")
    assert refusal(add(service, b"junk")) == (422, "unreadable_image")
    none = add(service, b"junk", b"more junk")
    assert refusal(none) == (422, "unreadable_image")
    assert [image["number"] for image in none.json()["refused"]] == [0, 1]


def test_an_answer_says_what_was_assumed_about_each_file(service: TestClient) -> None:
    """Numbers of 12 bits in 16, a JPEG without its end, and ordinary files; a bad one does not shift the others."""
    dark = toys.encoded(Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 2))
    cut = toys.encoded(Image.open(BytesIO(noise(31))), "JPEG")[:-2]
    answer = add(service, noise(32), b"no image", dark, cut, noise(33)).json()
    assert [len(item["notes"]) for item in answer["items"]] == [0, 1, 1, 0]
    again = add(service, dark).json()["items"][0]
    assert again == answer["items"][1], "an image that is there is answered with the note, too"
    put = service.put("/items/by-key/dark", files={"image": dark}).json()
    assert put["notes"] == again["notes"]
    lines = [
        {"key": f"k{number}", "image": base64.b64encode(data).decode()} for number, data in ((1, dark), (2, noise(34)))
    ]
    body = "\n".join(map(json.dumps, lines))
    bulk = service.post("/items/bulk", content=body, headers={"content-type": "application/x-ndjson"}).json()
    assert [result["notes"] for result in bulk["results"]] == [again["notes"], []]


def test_items_are_changed_and_removed(service: TestClient) -> None:
    item = add(service, noise(5), label="before", metadata='{"a": 1}').json()["items"][0]
    path = f"/items/{item['id']}"
    changed = service.patch(path, json={"label": "after"}).json()
    assert (changed["label"], changed["metadata"]) == ("after", {"a": 1})
    assert (changed["gallery_change"], changed["change"]) == (service.get("/stats").json()["change"], item["change"])
    put = {"metadata": {"b": None}, "replace": True}
    assert service.patch(path, json=put).json()["metadata"] == {"b": None}
    assert service.patch(path, json={"label": None}).json()["label"] is None
    assert service.get(path).json()["metadata"] == {"b": None}
    assert service.delete(path).json() == {"removed": item["id"]}
    for method in ("GET", "DELETE", "PATCH"):
        body = {"json": {"label": "x"}} if method == "PATCH" else {}
        assert refusal(service.request(method, path, **body)) == (404, "no_such_item")
    assert item["id"] not in [hit["id"] for hit in service.post("/search", content=noise(5)).json()["results"]]


RFC_7396 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"a": "foo"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({"a": 1}, {}, {"a": 1}),
]
"""Metadata, a change, and the result: the examples of RFC 7396, appendix A, whose documents are objects."""


def test_a_change_is_merged_into_the_metadata(service: TestClient) -> None:
    item = add(service, noise(60), key="merged/1").json()["items"][0]
    for path in (f"/items/{item['id']}", "/items/by-key/merged/1"):
        for before, change, after in RFC_7396:
            for put in (
                service.patch(path, json={"metadata": before, "replace": True}),
                service.patch(f"{path}?replace=true", json={"metadata": before}),
            ):
                assert put.json()["metadata"] == before
            assert service.patch(path, json={"metadata": change}).json()["metadata"] == after
            assert service.get(path).json()["metadata"] == after
    assert refusal(service.patch(path, json={"replace": True})) == (422, "invalid_body")
    assert refusal(service.patch(path, json={"metadata": {}, "replace": "maybe"})) == (422, "invalid_replace")


def test_merged_metadata_have_the_limits_of_new_ones(service: TestClient) -> None:
    path = f"/items/{add(service, noise(61)).json()['items'][0]['id']}"
    half = "x" * 9000
    assert service.patch(path, json={"metadata": {"a": half}}).status_code == 200
    assert refusal(service.patch(path, json={"metadata": {"b": half}})) == (422, "invalid_metadata")
    assert service.get(path).json()["metadata"] == {"a": half}, "a refused change leaves nothing"
    assert service.patch(path, json={"metadata": {"a": None, "b": half}}).json()["metadata"] == {"b": half}


def test_merges_at_the_same_moment_lose_nothing(service: TestClient) -> None:
    path = f"/items/{add(service, noise(62)).json()['items'][0]['id']}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: service.patch(path, json={"metadata": {f"k{number}": number}}), range(16)))
    assert service.get(path).json()["metadata"] == {f"k{number}": number for number in range(16)}


def test_an_image_is_added_as_json(service: TestClient) -> None:
    image, values = noise(63), {"label": "json", "metadata": {"price": 9.5, "tags": ["a"]}, "key": "json/1"}
    encoded = base64.b64encode(image).decode()
    added = service.post("/items", json={"image": encoded, **values})
    assert added.status_code == 201, added.text
    item = added.json()["items"][0]
    assert {name: item[name] for name in values} == values
    assert item["content_sha256"] == hashlib.sha256(image).hexdigest()
    assert service.post("/items", json={"image": encoded, "label": "other", "update": True}).json()["differing"]
    assert service.get(f"/items/{item['id']}").json()["label"] == "other"
    put = service.put("/items/by-key/json/1", json={"image": encoded, "label": "json"}).json()
    assert (put["status"], put["label"], put["id"]) == ("updated", "json", item["id"])
    assert refusal(service.post("/items", json={"image": encoded, "lable": "x"})) == (422, "unknown_parameter")


def test_a_path_or_method_that_does_not_exist_asks_for_no_key(http: TestClient, service: TestClient) -> None:
    stranger = {"authorization": ""}
    for path in ("/nothing", "/v1/completions", "/items/1/nothing", "/search/", "/item"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert refusal(http.request(method, path)) == (404, "not_found"), path
            assert refusal(service.request(method, path, headers=stranger)) == (404, "not_found"), path
    for method, path in (("POST", "/labels"), ("PUT", "/search"), ("DELETE", "/items"), ("PATCH", "/stats")):
        assert refusal(http.request(method, path)) == (405, "method_not_allowed"), path


def test_metadata_filter(service: TestClient) -> None:
    for seed, colour, year in ((11, "red", 1), (12, "red", 2), (13, "blue", 2), (14, None, 3)):
        add(service, noise(seed), metadata=json.dumps({"set": "f", "colour": colour, "year": year}))

    def years(where: str) -> list[int]:
        hits = service.post("/search", params={"k": 50, "where": where}, content=noise(11)).json()["results"]
        return sorted(service.get(f"/items/{hit['id']}").json()["metadata"]["year"] for hit in hits)

    listed = service.get("/items", params={"where": '{"set": "f", "year": 2}', "limit": 1, "offset": 1}).json()
    assert (listed["total"], [item["metadata"]["colour"] for item in listed["items"]]) == (2, ["blue"])
    counts = service.get("/metadata?limit=2").json()
    assert counts["values"][0] == {"key": "set", "value": "f", "items": 4}
    assert (counts["total"] > 5, len(counts["values"])) == (True, 2)
    assert years('{"set": "f"}') == [1, 2, 2, 3]
    assert years('{"set": "f", "colour": "red"}') == [1, 2]
    assert years('{"set": "f", "colour": ["red", "blue"], "year": 2}') == [2, 2]
    assert years('{"set": "f", "year": {"gte": 2, "lt": 3}}') == [2, 2]
    assert years('{"set": "f", "colour": null}') == [3]
    assert years('{"set": "f", "colour": [null, "blue"]}') == [2, 3]
    assert years('{"set": "f", "colour": "it\'s"}') == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"label": "a\x00b"}, "invalid_label"),
        ({"label": "x" * 1001}, "invalid_label"),
        ({"source": "a\nb"}, "invalid_source"),
        ({"metadata": "[1]"}, "invalid_metadata"),
        ({"metadata": '{"a": NaN}'}, "invalid_metadata"),
        ({"metadata": '{"a": ' + "9" * 400 + "}"}, "invalid_metadata"),
        ({"metadata": f'{{"a": [{2**63}]}}'}, "invalid_metadata"),
        ({"metadata": '{"a":' * 480 + "1" + "}" * 480}, "invalid_metadata"),
        ({"metadata": '{"a": "\\ud800"}'}, "invalid_metadata"),
        ({"metadata": f'{{"a": "{"x" * 20_000}"}}'}, "invalid_metadata"),
        ({"update": "perhaps"}, "invalid_update"),
        ({"update": "yes"}, "invalid_update"),
        ({"update": "1"}, "invalid_update"),
        ({"update": "True"}, "invalid_update"),
        ({"key": "x" * 257}, "invalid_key"),
        ({"key": "a\nb"}, "invalid_key"),
        ({"labels": "x"}, "unknown_parameter"),
    ],
)
def test_an_invalid_description_is_refused(service: TestClient, fields: dict[str, str], code: str) -> None:
    before = service.get("/stats").json()["items"]
    assert refusal(add(service, noise(99), **fields)) == (422, code)
    assert service.get("/stats").json()["items"] == before


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_cannot_be_read_is_refused(service: TestClient, body: bytes) -> None:
    answer = service.patch("/items/1", content=body, headers={"content-type": "application/json"})
    assert refusal(answer) == (422, "invalid_body")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_body"),
        (b"[]", "invalid_body"),
        (b"{}", "invalid_body"),
        (b"{", "invalid_body"),
        (b'{"source": "x"}', "invalid_body"),
        (b'{"label": 1}', "invalid_label"),
        (b'{"label": ["a"]}', "invalid_label"),
        (b'{"label": ["a"], "source": "x"}', "invalid_body"),
        (b'{"label": "\\ud800"}', "invalid_label"),
        (b'{"metadata": []}', "invalid_metadata"),
        (b'{"metadata": null}', "invalid_metadata"),
        (b'{"metadata": {"a": 9223372036854775808}}', "invalid_metadata"),
    ],
)
def test_an_invalid_change_is_refused(service: TestClient, body: bytes, code: str) -> None:
    for headers in ({}, {"content-type": "application/json"}):
        assert refusal(service.patch("/items/1", content=body, headers=headers)) == (422, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/items/1"),
        ("GET", "/items/1/thumbnail"),
        ("PATCH", "/items/1"),
        ("DELETE", "/items/1"),
        ("GET", "/stats"),
        ("GET", "/model"),
        ("GET", "/map"),
        ("GET", "/evaluate"),
        ("POST", "/evaluate"),
        ("GET", "/collections"),
        ("GET", "/metrics"),
    ],
)
def test_paths_without_parameters_refuse_all(service: TestClient, method: str, path: str) -> None:
    body = {"label": "x"} if method == "PATCH" else None
    answer = service.request(method, path, params={"lable": "x"}, json=body)
    assert refusal(answer) == (422, "unknown_parameter")


def test_metadata_up_to_the_limits(service: TestClient) -> None:
    deep = '{"a":' * 32 + "1" + "}" * 32
    item = add(service, noise(77), metadata=deep).json()["items"][0]
    assert item["metadata"] == json.loads(deep)
    changed = service.patch(f"/items/{item['id']}", json={"metadata": {"a": -(2**63)}})
    assert changed.json()["metadata"] == {"a": -(2**63)}
    assert {"key": "a", "value": -(2**63), "items": 1} in service.get("/metadata").json()["values"]


def test_an_image_with_another_description_is_named(service: TestClient) -> None:
    image, values = toys.encoded(toys.picture(1, np.random.default_rng(8))), {"label": "one", "metadata": '{"a": 1}'}
    (item,) = add(service, image, **values).json()["items"]
    for same in (values, {}, {"label": "one"}, {"metadata": '{"a": 1}'}):
        assert add(service, image, **same).json()["differing"] == []
    answer = add(service, image, label="two").json()
    assert answer["items"] == [item]
    (differing,) = answer["differing"]
    del differing["message"]
    assert differing == {"number": 0, "id": item["id"], "label": "one", "updated": False}
    updated = add(service, image, label="two", update="true").json()
    assert updated["differing"][0]["updated"]
    assert (updated["items"][0]["label"], updated["items"][0]["metadata"]) == ("two", {"a": 1})
    assert len(add(service, image, metadata='{"b": 2}').json()["differing"]) == 1
    assert add(service, image, metadata='{"b": 2}', update="true").json()["items"][0]["metadata"] == {"b": 2}


def test_an_image_that_was_removed_while_it_was_added_is_answered_as_it_was_sent(written_folder: Path) -> None:
    vector = np.eye(1, 16, dtype=np.float32)[0]
    given = NewItem("s", vector, toys.thumbnail(1), "a" * 64, "l", {"b": 1})
    with VectorGallery.open(written_folder) as gallery:
        item = stored_item(gallery, 10_000, given)
    assert (item.id, item.source, item.label, item.metadata) == (10_000, "s", "l", {"b": 1})


# Keys of clients


def test_a_key_is_of_one_image(gallery_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    with local_client(folder, "k" * 20) as service:
        first, again = (add(service, noise(1), key="cam-1/0001.jpg") for _ in range(2))
        assert (first.status_code, again.status_code, again.json()["new"]) == (201, 200, 0)
        (item,) = first.json()["items"]
        assert item["key"] == "cam-1/0001.jpg"
        shown = {**service.get(f"/items/{item['id']}").json(), "notes": []}
        assert again.json()["items"] == [item] == [shown]
        assert refusal(add(service, noise(2), key="cam-1/0001.jpg")) == (409, "key_taken")
        (other,) = add(service, noise(1), key="another").json()["items"]
        assert other["id"] != item["id"], "two products may share a picture"
        assert service.get("/stats").json()["items"] == 26
        service.delete(f"/items/{item['id']}").raise_for_status()
        assert add(service, noise(2), key="cam-1/0001.jpg").status_code == 201, "the key is free again"
        (unnamed,) = add(service, noise(3)).json()["items"]
        assert unnamed["key"] is None
        named = add(service, noise(3), key="mine")
        assert (named.status_code, named.json()["items"]) == (200, [{**unnamed, "key": "mine"}])
        assert refusal(add(service, noise(4), noise(5), key="both")) == (422, "invalid_key")


def test_only_one_of_two_images_under_one_key_is_kept(service: TestClient) -> None:
    before = service.get("/stats").json()["items"]

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            forms = [{"files": {"image": noise(seed)}, "data": {"key": "one"}} for seed in (201, 202)]
            headers = dict(service.headers.items())
            return await asyncio.gather(*(client.post("/items", **form, headers=headers) for form in forms))

    assert sorted(answer.status_code for answer in asyncio.run(both())) == [201, 409]
    assert service.get("/stats").json()["items"] == before + 1


def test_without_a_write_key_nothing_changes(service: TestClient, http: TestClient) -> None:
    before = service.get("/stats").json()["change"]
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/items", {"files": {"image": noise(50)}}),
        ("DELETE", "/items/1", {}),
        ("PATCH", "/items/1", {"json": {"label": "x"}}),
        ("POST", "/evaluate", {}),
    ]
    for method, path, values in requests:
        assert refusal(service.request(method, path, headers={"authorization": ""}, **values))[0] == 401
        assert refusal(http.request(method, path, **values)) == (403, "read_only")
    assert service.get("/stats").json()["change"] == before


def test_long_lists_of_labels_and_values_are_bounded(model: Embedder, tmp_path: Path) -> None:
    """One picture under 2,500 keys, each with a label and metadata of its own that are long."""
    row = np.eye(toys.DIM, dtype=np.float32)[0]
    path = tmp_path / "g"
    with VectorGallery.create(path, model.card, str(model.folder)) as gallery:
        gallery.add(
            [
                NewItem(
                    f"{number}.png", row, NO_PICTURE, "0" * 64, f"{number} {'x' * 30_000}",
                    {"text": f"{number} {'y' * 15_000}"}, key=str(number),
                )
                for number in range(2500)
            ]
        )  # fmt: skip
    with local_client(path) as client:
        for target in ("/labels?limit=10000", "/metadata?limit=10000"):
            assert refusal(client.get(target)) == (422, "answer_too_large"), target
        assert len(client.get("/labels?limit=1000").json()["labels"]) == 1000
        assert len(client.get("/metadata?limit=1000").json()["values"]) == 1000
