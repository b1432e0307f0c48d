"""Marking results over a real connection with keys: what is kept, listed, taken back, calibrated and evaluated by."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.gallery import Gallery
from serving.gallery.types import ItemUpdate
from tests.serving import toys
from tests.serving.running import serving
from zoo.models.load import Embedder

READER, WRITER = "read-key-of-the-tests", "write-key-of-the-tests"
WITH_KEY = {"authorization": f"Bearer {WRITER}"}


@pytest.fixture(scope="module")
def folder(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toys without labels, but for the first two."""
    copy = tmp_path_factory.mktemp("marked") / "gallery"
    shutil.copytree(gallery_folder, copy)
    with Gallery.open(copy) as gallery:
        gallery.store.update(
            [ItemUpdate(item.id, item.source, item.label if item.id < 3 else None) for item in gallery.store.items()]
        )
    return copy


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[httpx.Client]:
    with (
        serving(folder, environment={READ_KEYS: READER, WRITE_KEYS: WRITER}) as running,
        httpx.Client(base_url=running.url, timeout=30, headers=WITH_KEY) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def unmarked(folder: Path) -> Iterator[None]:
    yield
    with Gallery.open(folder) as gallery:
        for mark in gallery.store.marks.all():
            gallery.store.marks.remove(mark.id)


def put(service: httpx.Client, query: Any, item: int, verdict: str, status: int = 201) -> dict[str, Any]:
    answer = service.post("/feedback", json={"query": query, "item": item, "verdict": verdict})
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


def sent(service: httpx.Client, data: bytes, form: str = "base64", **values: str) -> dict[str, Any]:
    """What is sent back of an image that was searched by."""
    told = service.post("/embed", params={"format": form, **values}, content=data).json()
    return {"content_sha256": told["content_sha256"][0], "embedding": told["embeddings"][0], "source": "my.png"}


def test_a_pair_is_marked_once_and_the_mark_is_taken_back(service: httpx.Client, folder: Path) -> None:
    first = put(service, 1, 5, "wrong")
    assert (first["verdict"], first["query"]["id"], first["result"]["id"]) == ("wrong", 1, 5)
    with Gallery.open(folder) as gallery:
        expected = gallery.store.embedding(1) @ gallery.store.embedding(5)
        assert first["query"]["content_sha256"] == gallery.store.item(1).content_sha256
    assert first["similarity"] == pytest.approx(float(expected), abs=1e-6)
    again = put(service, 1, 5, "right", status=200)
    assert (again["id"], again["verdict"]) == (first["id"], "right")
    assert service.get("/feedback").json()["marks"] == [again]
    assert service.get("/stats").json()["marks"] == {"right": 1, "wrong": 0}
    assert service.get(again["result"]["thumbnail"]).status_code == 200
    assert service.delete(f"/feedback/{first['id']}").json() == {"removed": first["id"]}
    assert service.get("/feedback").json()["total"] == 0
    for gone in (first["id"], 0, 10**17, "x", "9" * 99):
        assert service.delete(f"/feedback/{gone}").status_code == 404


@pytest.mark.parametrize("form", ["json", "base64"])
def test_the_query_may_be_an_image_that_was_sent(
    service: httpx.Client, model: Embedder, folder: Path, form: str
) -> None:
    image = toys.query(2)
    query = sent(service, image, form)
    assert query["content_sha256"] == hashlib.sha256(image).hexdigest()
    mark = put(service, query, 7, "right")
    assert (mark["query"]["id"], mark["query"]["source"], mark["query"]["thumbnail"]) == (None, "my.png", None)
    with Gallery.open(folder) as gallery:
        assert mark["similarity"] == pytest.approx(float(model.embed(image)[0] @ gallery.store.embedding(7)), abs=1e-5)
    part = sent(service, image, crop="0,0,0.5,1")
    assert part["content_sha256"] != query["content_sha256"], "a part of an image is another image"
    assert sent(service, image, crop="0,0,0.5,1") == part
    put(service, part, 7, "wrong")
    found = service.get("/feedback", params={"query": query["content_sha256"]}).json()
    assert found["marks"] == [mark]


def test_an_item_that_is_sent_is_that_item(service: httpx.Client, pictures: Path) -> None:
    source = service.get("/items/4").json()["source"]
    query = sent(service, (pictures / source).read_bytes())
    mark = put(service, query, 9, "wrong")
    assert (mark["query"]["id"], mark["query"]["source"]) == (4, source)
    assert put(service, 4, 9, "right", status=200)["id"] == mark["id"]
    put(service, query, 4, "right", status=422)


def test_marks_are_listed_page_by_page_and_by_what_they_are_of(service: httpx.Client) -> None:
    made = [put(service, query, item, ("wrong", "right")[item % 2]) for query in (1, 2) for item in (10, 11, 12)]
    whole = service.get("/feedback").json()
    assert (whole["total"], whole["right"], whole["wrong"], whole["marks"]) == (6, 2, 4, made)
    pages = [service.get("/feedback", params={"offset": at, "limit": 4}).json()["marks"] for at in (0, 4)]
    assert pages == [made[:4], made[4:]]
    for values, expected in (
        ({"query": "2"}, made[3:]),
        ({"item": "11"}, [made[1], made[4]]),
        ({"verdict": "right", "query": "1"}, [made[1]]),
    ):
        assert service.get("/feedback", params=values).json()["marks"] == expected
    for values, status in (
        ({"verdict": "maybe"}, 422),
        ({"limit": 0}, 422),
        ({"query": "99"}, 404),
        ({"item": "x"}, 404),
    ):
        assert service.get("/feedback", params=values).status_code == status


def test_marks_go_when_their_item_does(service: httpx.Client) -> None:
    image = toys.encoded(toys.picture(0, np.random.default_rng(7)))
    item = service.post("/items", files={"image": ("new.png", image)}).json()["items"][0]["id"]
    put(service, item, 3, "right")
    put(service, 3, item, "right")
    put(service, 3, 4, "right")
    service.delete(f"/items/{item}")
    assert service.get("/feedback").json()["total"] == 1


VECTOR = base64.b64encode(np.eye(toys.DIM, dtype="<f4")[0].tobytes()).decode()
GOOD = {"content_sha256": "0" * 64, "embedding": VECTOR}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_body"),
        (b"[" * 100_000, "invalid_body"),
        ({"query": 1, "item": 2}, "invalid_body"),
        ({"query": 1, "item": 2, "verdict": "right", "more": 1}, "invalid_body"),
        ({"query": 1, "item": 2, "verdict": "maybe"}, "invalid_verdict"),
        ({"query": 1, "item": 2, "verdict": ["right"]}, "invalid_verdict"),
        ({"query": 1, "item": "2", "verdict": "right"}, "invalid_item"),
        ({"query": 1, "item": True, "verdict": "right"}, "invalid_item"),
        ({"query": 1, "item": 2.0, "verdict": "right"}, "invalid_item"),
        ({"query": 1, "item": 10**30, "verdict": "right"}, "no_such_item"),
        ({"query": -1, "item": 2, "verdict": "right"}, "no_such_item"),
        ({"query": 2, "item": 2, "verdict": "right"}, "invalid_value"),
        ({"query": None, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "more": 1}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "content_sha256": "0" * 63}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "content_sha256": ["0" * 64]}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": VECTOR[:-3]}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": "ä"}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": [[1.0]]}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": [1.0, "0"]}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": [10**400]}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "embedding": [1e300] * toys.DIM}, "item": 2, "verdict": "right"}, "invalid_value"),
        ({"query": {**GOOD, "embedding": [1.0]}, "item": 2, "verdict": "right"}, "invalid_value"),
        ({"query": {**GOOD, "embedding": "AAAA"}, "item": 2, "verdict": "right"}, "invalid_query"),
        ({"query": {**GOOD, "source": "a\x00"}, "item": 2, "verdict": "right"}, "invalid_source"),
        ({"query": {**GOOD, "source": "\ud800"}, "item": 2, "verdict": "right"}, "invalid_source"),
        ({"query": {**GOOD, "source": 1}, "item": 2, "verdict": "right"}, "invalid_query"),
    ],
)
def test_what_is_no_mark_is_refused(service: httpx.Client, body: Any, code: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = service.post("/feedback", content=content)
    assert answer.json()["error"]["code"] == code
    assert answer.status_code == (404 if code == "no_such_item" else 422)
    assert service.get("/stats").json()["marks"] == {"right": 0, "wrong": 0}


def test_only_a_write_key_marks(service: httpx.Client) -> None:
    mark = put(service, 1, 2, "right")
    for key, status in ((None, 401), (READER, 403), ("no key of this service", 401)):
        headers = {"authorization": f"Bearer {key}"} if key else {"authorization": ""}
        body = {"query": 1, "item": 3, "verdict": "right"}
        assert service.post("/feedback", json=body, headers=headers).status_code == status
        assert service.delete(f"/feedback/{mark['id']}", headers=headers).status_code == status
        assert service.get("/feedback", headers=headers).status_code == (200 if key == READER else 401)
    assert service.get("/feedback").json()["total"] == 1


def test_marks_calibrate_and_evaluate(service: httpx.Client, folder: Path) -> None:
    """Two labelled items of one label say nothing; marks do."""
    answer = service.post("/evaluate", timeout=60).json()
    assert (answer["marks"]["precision"], answer["calibration"]) == (None, None)
    kinds = {item["id"]: item["source"].split("/")[0] for item in service.get("/items?limit=24").json()["items"]}
    for query in (1, 7, 13, 19):
        for item in range(query + 1, query + 4):
            put(service, query, item, "right")
        for item in (query % 24 + 7, query % 24 + 8, query % 24 + 9):
            put(service, query, (item - 1) % 24 + 1, "wrong")
    put(service, 1, 2, "wrong", status=200)  # which their labels contradict
    told = service.post("/evaluate", timeout=60).json()
    assert (told["marks"]["right"], told["marks"]["wrong"], told["marks"]["precision"]) == (11, 13, 11 / 24)
    (contradiction,) = told["marks"]["contradictions"]
    assert told["marks"]["contradict_labels"] == 1
    assert (contradiction["query"]["label"], contradiction["result"]["label"]) == (kinds[1], kinds[2])
    assert told["calibration"]["marked"] == 24
    assert told["not_calibrated"] is None
    assert sum(one["count"] for one in told["reliability"]) == told["calibration"]["pairs"]
    kept = service.get("/evaluate").json()
    assert {**kept, "changed_since": None} == {**told, "changed_since": None}
    hits = service.post("/search?id=1&k=23").json()["results"]
    assert hits[0]["p_same"] > 0.5 > hits[-1]["p_same"]
    put(service, 1, 2, "right", status=200)
    assert service.get("/evaluate").json()["marks"]["contradict_labels"] == 0, "marks are as they are now"
    with Gallery.open(folder) as gallery:
        for item in (1, 2):
            gallery.store.describe(item, None, {})
    told = service.post("/evaluate", timeout=60).json()
    assert (told["steps"], told["calibration"]["neighbours"], told["marks_left_out"]) == ([], 0, 0)
    assert "no labelled items" in told["not_measured"]


def test_an_image_that_is_there_under_another_label_is_named(service: httpx.Client) -> None:
    image, values = toys.encoded(toys.picture(1, np.random.default_rng(8))), {"label": "one", "metadata": '{"a": 1}'}

    def add(**fields: str) -> dict[str, Any]:
        told: dict[str, Any] = service.post("/items", files={"image": ("a.png", image)}, data=fields).json()
        return told

    (item,) = add(**values)["items"]
    for same in (values, {}, {"label": "one"}, {"metadata": '{"a": 1}'}):
        assert add(**same)["differing"] == []
    told = add(label="two")
    assert told["items"] == [item]
    (one,) = told["differing"]
    assert (one["number"], one["id"], one["label"], one["updated"]) == (0, item["id"], "one", False)
    assert one["message"].startswith(f"Already there as item {item['id']} with label one;")
    assert "update=true" in one["message"]
    told = add(label="two", update="true")
    assert told["differing"][0]["updated"]
    assert (told["items"][0]["label"], told["items"][0]["metadata"]) == ("two", {"a": 1})
    assert "other metadata" in add(metadata='{"b": 2}')["differing"][0]["message"]
    assert add(metadata='{"b": 2}', update="true")["items"][0]["metadata"] == {"b": 2}
    refused = service.post("/items?update=perhaps", files={"image": ("a.png", image)})
    assert refused.json()["error"]["code"] == "invalid_update"
    service.delete(f"/items/{item['id']}")
