"""Adding, changing and removing items, and evaluating, over a real connection with keys."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.gallery import Gallery, NewItem
from serving.gallery.types import Thumbnail
from serving.writing import _kept
from tests.serving import toys
from tests.serving.running import serving
from zoo.models.load import Embedder

KEY = "write-key-of-the-tests"


@pytest.fixture(scope="module")
def folder(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("written") / "gallery"
    shutil.copytree(gallery_folder, copy)
    return copy


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[httpx.Client]:
    with (
        serving(folder, environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as running,
        httpx.Client(base_url=running.url, timeout=30) as client,
    ):
        yield client


WITH_KEY = {"authorization": f"Bearer {KEY}"}


def noise(seed: int) -> bytes:
    return toys.encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)))


def add(service: httpx.Client, *images: bytes, **fields: Any) -> httpx.Response:
    files = [("image", (f"{i}.png", data)) for i, data in enumerate(images)]
    return service.post("/items", files=files, data=fields, headers=WITH_KEY)


def test_an_item_that_was_added_is_found_at_once_and_kept(service: httpx.Client, folder: Path, model: Embedder) -> None:
    answer = add(service, noise(1), label="noise", source="camera 1", metadata='{"year": 1908, "tags": ["a"]}')
    assert answer.status_code == 201
    (item,) = answer.json()["items"]
    assert (item["label"], item["source"], item["metadata"]) == ("noise", "camera 1", {"year": 1908, "tags": ["a"]})
    best = service.post("/search?k=1", content=noise(1)).json()["results"][0]
    assert best["id"] == item["id"]
    assert best["similarity"] == pytest.approx(1, abs=1e-6)
    with Gallery.open(folder) as gallery:  # another process sees it
        np.testing.assert_allclose(gallery.store.embedding(item["id"]), model.embed(noise(1))[0], atol=1e-6)
    assert service.get(item["thumbnail"]).headers["content-type"] == "image/png"


def test_the_same_content_again_is_the_same_item(service: httpx.Client) -> None:
    first = add(service, noise(2)).json()
    again = add(service, noise(2), label="other")
    assert (again.status_code, again.json()["new"]) == (200, 0)
    assert again.json()["items"] == first["items"]


def test_a_bad_image_among_good_ones_is_named(service: httpx.Client) -> None:
    answer = add(service, noise(3), b"junk", noise(4))
    assert answer.status_code == 201
    assert answer.json()["new"] == 2
    (refused,) = answer.json()["refused"]
    assert (refused["number"], refused["error"]["code"]) == (1, "unreadable_image")
    assert add(service, b"junk").status_code == 422
    answer = add(service, b"junk", b"more junk")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unreadable_image")
    assert answer.json()["error"]["message"].startswith("None of the 2 images was added. Of the first: ")
    assert [one["number"] for one in answer.json()["refused"]] == [0, 1]


def test_items_are_changed_and_removed(service: httpx.Client) -> None:
    item = add(service, noise(5), label="before", metadata='{"a": 1}').json()["items"][0]
    path = f"/items/{item['id']}"
    changed = service.patch(path, json={"label": "after"}, headers=WITH_KEY).json()
    assert (changed["label"], changed["metadata"]) == ("after", {"a": 1})
    assert service.patch(path, json={"metadata": {"b": None}}, headers=WITH_KEY).json()["metadata"] == {"b": None}
    assert service.patch(path, json={"label": None}, headers=WITH_KEY).json()["label"] is None
    assert service.get(path).json()["metadata"] == {"b": None}
    assert service.delete(path, headers=WITH_KEY).json() == {"removed": item["id"]}
    for method in ("GET", "DELETE", "PATCH"):
        body = {"json": {"label": "x"}} if method == "PATCH" else {}
        assert service.request(method, path, headers=WITH_KEY, **body).status_code == 404
    assert item["id"] not in [hit["id"] for hit in service.post("/search", content=noise(5)).json()["results"]]


def test_metadata_is_a_filter(service: httpx.Client) -> None:
    for seed, colour, year in ((11, "red", 1), (12, "red", 2), (13, "blue", 2), (14, None, 3)):
        add(service, noise(seed), metadata=json.dumps({"set": "f", "colour": colour, "year": year}))

    def years(where: str) -> list[int]:
        hits = service.post("/search", params={"k": 50, "where": where}, content=noise(11)).json()["results"]
        return sorted(service.get(f"/items/{hit['id']}").json()["metadata"]["year"] for hit in hits)

    listed = service.get("/items", params={"where": '{"set": "f", "year": 2}', "limit": 1, "offset": 1}).json()
    assert (listed["total"], [item["metadata"]["colour"] for item in listed["items"]]) == (2, ["blue"])
    assert service.get("/items", params={"where": "[]"}).status_code == 422
    told = service.get("/metadata?limit=2").json()
    assert told["values"][0] == {"key": "set", "value": "f", "items": 4}
    assert (told["total"] > 5, len(told["values"])) == (True, 2)
    assert years('{"set": "f"}') == [1, 2, 2, 3]
    assert years('{"set": "f", "colour": "red"}') == [1, 2]
    assert years('{"set": "f", "colour": ["red", "blue"], "year": 2}') == [2, 2]
    assert years('{"set": "f", "colour": null}') == [3]
    assert years('{"set": "f", "colour": [null, "blue"]}') == [2, 3]
    assert years('{"set": "f", "colour": "it\'s"}') == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"label": "a\x00b"}, "invalid_label"),
        ({"label": "x" * 1001}, "invalid_label"),
        ({"metadata": "[1]"}, "invalid_metadata"),
        ({"metadata": '{"a": NaN}'}, "invalid_metadata"),
        ({"metadata": '{"a": ' + "9" * 400 + "}"}, "invalid_metadata"),
        ({"metadata": f'{{"a": [{2**63}]}}'}, "invalid_metadata"),
        ({"metadata": '{"a":' * 480 + "1" + "}" * 480}, "invalid_metadata"),
        ({"metadata": '{"a": "\\ud800"}'}, "invalid_metadata"),
        ({"metadata": f'{{"a": "{"x" * 20_000}"}}'}, "invalid_metadata"),
        ({"labels": "x"}, "unknown_parameter"),
    ],
)
def test_what_cannot_be_kept_is_refused(service: httpx.Client, fields: dict[str, str], code: str) -> None:
    before = service.get("/stats").json()["items"]
    answer = add(service, noise(99), **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
    assert service.get("/stats").json()["items"] == before


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"source": "x"}', b'{"label": 1}', b'{"metadata": []}', b"[" * 5000]
)
def test_a_change_that_is_not_understood_is_refused(service: httpx.Client, body: bytes) -> None:
    answer = service.patch("/items/1", content=body, headers=WITH_KEY)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"].startswith("invalid_")


def test_metadata_may_be_as_deep_and_as_large_as_is_said(service: httpx.Client) -> None:
    deep = '{"a":' * 32 + "1" + "}" * 32
    item = add(service, noise(77), metadata=deep).json()["items"][0]
    assert item["metadata"] == json.loads(deep)
    changed = service.patch(f"/items/{item['id']}", json={"metadata": {"a": -(2**63)}}, headers=WITH_KEY)
    assert changed.json()["metadata"] == {"a": -(2**63)}
    assert {"key": "a", "value": -(2**63), "items": 1} in service.get("/metadata").json()["values"]
    assert service.patch(f"/items/{item['id']}", json={"metadata": {"a": 2**63}}, headers=WITH_KEY).status_code == 422
    assert service.delete(f"/items/{item['id']}", headers=WITH_KEY).status_code == 200


def test_more_labels_than_a_statement_takes(service: httpx.Client) -> None:
    many = [f"label {number}" for number in range(10_000)]
    answer = service.post("/search", json={"id": 1, "label": [*many[1:], toys.CLASSES[0]]})
    assert {hit["label"] for hit in answer.json()["results"]} == {toys.CLASSES[0]}
    answer = service.post("/search", json={"id": 1, "label": [*many, "one more"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_value")
    assert "10,000 labels" in answer.json()["error"]["message"]


def test_reads_beside_deletes_find_what_is_left(service: httpx.Client, folder: Path) -> None:
    """What a search has found may be gone when its embedding is asked for; nobody is told that of their query."""
    ended, statuses = threading.Event(), []

    def come_and_go() -> None:
        with httpx.Client(base_url=str(service.base_url), timeout=30) as other:
            while not ended.is_set():
                item = add(other, noise(1) + b"again").json()["items"][0]["id"]
                other.delete(f"/items/{item}", headers=WITH_KEY)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(come_and_go)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            statuses.append(service.get("/map").status_code)
            found = [service.post(f"/search?rerank={how}", content=noise(1)) for how in ("expansion", "reciprocal")]
            statuses += [answer.status_code for answer in found]
        ended.set()
        going.result()
    assert set(statuses) == {200}


def test_an_image_that_is_removed_while_it_is_added_is_answered_all_the_same(folder: Path) -> None:
    given = NewItem("s", np.eye(1, 16, dtype=np.float32)[0], Thumbnail(b"x", "image/png"), "a" * 64, "l", {"b": 1})
    with Gallery.open(folder) as gallery:
        item = _kept(gallery, 10_000, given)
        assert (item.id, item.source, item.label, item.metadata) == (10_000, "s", "l", {"b": 1})


def test_without_the_key_nothing_changes(service: httpx.Client) -> None:
    before = service.get("/stats").json()["change"]
    for answer in (
        service.post("/items", files={"image": noise(50)}),
        service.delete("/items/1"),
        service.patch("/items/1", json={"label": "x"}),
        service.post("/evaluate"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_needed")
    assert service.get("/stats").json()["change"] == before


def test_an_evaluation_calibrates_and_is_kept(service: httpx.Client, folder: Path) -> None:
    told = service.post("/evaluate", headers=WITH_KEY, timeout=60).json()
    assert [step["step"] for step in told["steps"]] == ["gallery, exact", "gallery, flat index"]
    assert told["steps"][0]["metrics"] == told["steps"][1]["metrics"]
    assert told["index_recall_at_10"] == 1
    last = service.get("/evaluate").json()
    assert {**last, "changed_since": None} == {**told, "changed_since": None}
    assert last["changed_since"] is False
    calibration = told["calibration"]
    assert calibration["slope"] > 0
    hits = service.post("/search?id=1&k=20").json()["results"]
    expected = [1 / (1 + np.exp(-(calibration["slope"] * h["similarity"] + calibration["offset"]))) for h in hits]
    np.testing.assert_allclose([hit["p_same"] for hit in hits], expected, atol=1e-4)
    cut = service.post("/search?id=1&k=20&min_p=0.5").json()["results"]
    assert cut == [hit for hit, p in zip(hits, expected, strict=True) if p >= 0.5]
