"""/feedback: marks of items and of images that were sent, their pages, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from serving.gallery import Gallery
from tests.serving import toys
from tests.serving.running import local_client
from zoo.models.load import Embedder

READER = "read-key-of-the-tests"
VECTOR = base64.b64encode(np.eye(toys.DIM, dtype="<f4")[0].tobytes()).decode()
SENT = {"content_sha256": "0" * 64, "embedding": VECTOR}


@pytest.fixture(autouse=True)
def unmarked(written_folder: Path) -> Iterator[None]:
    """Remove the marks after each test."""
    yield
    with Gallery.open(written_folder) as gallery:
        for mark in gallery.store.marks.all():
            gallery.store.marks.remove(mark.id)


def put(service: TestClient, query: Any, item: int, verdict: str, status: int = 201) -> dict[str, Any]:
    answer = service.post("/feedback", json={"query": query, "item": item, "verdict": verdict})
    assert answer.status_code == status, answer.text
    return answer.json()


def sent(service: TestClient, data: bytes, form: str = "base64", **values: str) -> dict[str, Any]:
    """Return the description of an image that was searched by."""
    answer = service.post("/embed", params={"format": form, **values}, content=data).json()
    return {"content_sha256": answer["content_sha256"][0], "embedding": answer["embeddings"][0], "source": "my.png"}


def test_a_pair_has_one_mark(service: TestClient, written_folder: Path) -> None:
    first = put(service, 1, 5, "wrong")
    assert (first["verdict"], first["query"]["id"], first["result"]["id"]) == ("wrong", 1, 5)
    with Gallery.open(written_folder) as gallery:
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
    for mark_id in (first["id"], 0, 10**17, "x", "9" * 99):
        answer = service.delete(f"/feedback/{mark_id}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_mark")


@pytest.mark.parametrize("form", ["json", "base64"])
def test_the_query_may_be_an_image_that_was_sent(
    service: TestClient, model: Embedder, written_folder: Path, form: str
) -> None:
    image = toys.query(2)
    query = sent(service, image, form)
    assert query["content_sha256"] == hashlib.sha256(image).hexdigest()
    mark = put(service, query, 7, "right")
    assert (mark["query"]["id"], mark["query"]["source"], mark["query"]["thumbnail"]) == (None, "my.png", None)
    with Gallery.open(written_folder) as gallery:
        expected = float(model.embed(image)[0] @ gallery.store.embedding(7))
    assert mark["similarity"] == pytest.approx(expected, abs=1e-6)
    part = sent(service, image, form, crop="0,0,0.5,1")
    assert part["content_sha256"] != query["content_sha256"], "a part of an image is another image"
    assert sent(service, image, form, crop="0,0,0.5,1") == part
    put(service, part, 7, "wrong")
    assert service.get("/feedback", params={"query": query["content_sha256"]}).json()["marks"] == [mark]


def test_an_item_that_is_sent_is_that_item(service: TestClient, pictures: Path) -> None:
    source = service.get("/items/4").json()["source"]
    query = sent(service, (pictures / source).read_bytes())
    mark = put(service, query, 9, "wrong")
    assert (mark["query"]["id"], mark["query"]["source"]) == (4, source)
    assert put(service, 4, 9, "right", status=200)["id"] == mark["id"]
    put(service, query, 4, "right", status=422)


def test_marks_page_by_page_and_filtered(service: TestClient) -> None:
    made = [put(service, query, item, ("wrong", "right")[item % 2]) for query in (1, 2) for item in (10, 11, 12)]
    page = service.get("/feedback").json()
    assert (page["total"], page["right"], page["wrong"], page["marks"]) == (6, 2, 4, made)
    pages = [service.get("/feedback", params={"offset": offset, "limit": 4}).json()["marks"] for offset in (0, 4)]
    assert pages == [made[:4], made[4:]]
    for values, expected in (
        ({"query": "2"}, made[3:]),
        ({"item": "11"}, [made[1], made[4]]),
        ({"verdict": "right", "query": "1"}, [made[1]]),
    ):
        assert service.get("/feedback", params=values).json()["marks"] == expected
    for values, status, code in (
        ({"verdict": "maybe"}, 422, "invalid_verdict"),
        ({"limit": 0}, 422, "invalid_limit"),
        ({"itme": 1}, 422, "unknown_parameter"),
        ({"query": "99"}, 404, "no_such_item"),
        ({"item": "x"}, 404, "no_such_item"),
    ):
        answer = service.get("/feedback", params=values)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_marks_go_with_their_item(service: TestClient) -> None:
    image = toys.encoded(toys.picture(0, np.random.default_rng(7)))
    item = service.post("/items", files={"image": ("new.png", image)}).json()["items"][0]["id"]
    put(service, item, 3, "right")
    put(service, 3, item, "right")
    put(service, 3, 4, "right")
    service.delete(f"/items/{item}")
    assert service.get("/feedback").json()["total"] == 1


def _with(**values: Any) -> dict[str, Any]:
    return {"query": {**SENT, **values}, "item": 2, "verdict": "right"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_body"),
        (b"{", "invalid_body"),
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
        (_with(more=1), "invalid_query"),
        (_with(content_sha256="0" * 63), "invalid_query"),
        (_with(content_sha256=["0" * 64]), "invalid_query"),
        (_with(embedding=VECTOR[:-3]), "invalid_query"),
        (_with(embedding="ä"), "invalid_query"),
        (_with(embedding="AAAA"), "invalid_query"),
        (_with(embedding=[[1.0]]), "invalid_query"),
        (_with(embedding=[1.0, "0"]), "invalid_query"),
        (_with(embedding=[10**400]), "invalid_query"),
        (_with(embedding=[1e300] * toys.DIM), "invalid_value"),
        (_with(embedding=[1.0]), "invalid_value"),
        (_with(source="a\x00"), "invalid_query"),
        (_with(source="\ud800"), "invalid_query"),
        (_with(source=1), "invalid_query"),
        (_with(fingerprint=3), "invalid_query"),
    ],
)
def test_an_invalid_mark_is_refused(service: TestClient, body: Any, code: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = service.post("/feedback", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404 if code == "no_such_item" else 422, code)
    assert service.get("/stats").json()["marks"] == {"right": 0, "wrong": 0}


@pytest.mark.parametrize(
    ("body", "code", "names"),
    [
        ({"query": 7}, "invalid_body", ("item", "verdict")),
        ({"query": 7, "item": 2, "verdict": "right", "foo": 1}, "invalid_body", ("foo",)),
        ({"query": {"content_sha256": "0" * 64}, "item": 2, "verdict": "right"}, "invalid_query", ("embedding",)),
        (_with(foo=1), "invalid_query", ("foo",)),
    ],
)
def test_a_refused_mark_names_the_member(
    service: TestClient, body: dict[str, Any], code: str, names: tuple[str, ...]
) -> None:
    error = service.post("/feedback", json=body).json()["error"]
    assert error["code"] == code
    assert set(names) <= set(error["message"].replace("'", " ").replace(".", " ").split())


def test_an_embedding_of_another_model_is_refused(service: TestClient, model: Embedder) -> None:
    query = sent(service, toys.query(2))
    answer = service.post(
        "/feedback", json={"query": {**query, "fingerprint": "another"}, "item": 7, "verdict": "right"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_changed")
    put(service, {**query, "fingerprint": model.card.fingerprint}, 7, "right")


def test_only_a_write_key_marks(gallery_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    with local_client(folder, "w" * 20, read_keys=READER) as service:
        mark = put(service, 1, 2, "right")
        for key, status in (("", 401), (READER, 403), ("no key of this service", 401)):
            headers = {"authorization": f"Bearer {key}" if key else ""}
            body = {"query": 1, "item": 3, "verdict": "right"}
            assert service.post("/feedback", json=body, headers=headers).status_code == status
            assert service.delete(f"/feedback/{mark['id']}", headers=headers).status_code == status
            assert service.get("/feedback", headers=headers).status_code == (200 if key == READER else 401)
        assert service.get("/feedback").json()["total"] == 1
