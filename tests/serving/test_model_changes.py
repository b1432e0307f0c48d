"""What the service says once its gallery has another model: of embeddings from before, and in its log."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import WRITE_KEYS
from serving.gallery.rebuild import begin_upgrade
from serving.gallery.search import Searcher
from serving.keys import Keys
from serving.openapi import document
from serving.renewing import Renewing
from tests.serving import toys
from zoo.models.load import Embedder

KEY = "write-key-of-the-changes"


@pytest.fixture
def path(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "g"))


@pytest.fixture
def client(path: Path) -> Iterator[TestClient]:
    searchers = Renewing(lambda: Searcher.open(path))
    app = create_app(Collections([Collection("", searchers, Keys.of({WRITE_KEYS: KEY}))]))
    yield TestClient(app, "http://localhost", headers={"authorization": f"Bearer {KEY}"})
    searchers.close()


def sent(client: TestClient) -> dict[str, Any]:
    told = client.post("/embed?format=base64", content=toys.query(2)).json()
    said = {"content_sha256": told["content_sha256"][0], "embedding": told["embeddings"][0]}
    return {**said, "fingerprint": told["fingerprint"]}


def test_an_embedding_of_the_model_before_is_refused(
    client: TestClient, path: Path, other_model: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    def marked(query: dict[str, Any]) -> Any:
        return client.post("/feedback", json={"query": query, "item": 7, "verdict": "right"})

    before = sent(client)
    unsigned = {key: value for key, value in before.items() if key != "fingerprint"}
    assert marked(before).status_code == 201
    assert marked(unsigned).status_code == 200, "the gallery never had another model"
    assert marked({**before, "fingerprint": 3}).status_code == 422
    assert marked({**before, "fingerprint": "another"}).status_code == 409
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade, caplog.at_level(logging.INFO, "serving"):
        upgrade.embed()
        upgrade.swap()
        for stale in (before, unsigned):
            answer = marked(stale)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_changed")
            assert "Embed the image again (POST /embed)" in answer.json()["error"]["message"]
    (line,) = [record for record in caplog.records if "has another model now" in record.message]
    assert line.levelno == logging.INFO
    told = marked(sent(client)).json()
    assert told["model"] == other_model.card.fingerprint
    assert client.get("/feedback").json()["total"] == 1


def test_a_description_is_answered_with_its_own_change_beside_the_items(client: TestClient) -> None:
    before = client.get("/stats").json()["change"]
    changed = client.patch("/items/3", json={"label": "other"}).json()
    assert changed.pop("gallery_change") == client.get("/stats").json()["change"] == before + 1
    assert changed == client.get("/items/3").json()


def test_the_specification_says_where_the_model_is_needed() -> None:
    paths = document(100)["paths"]
    operations = {f"{method} {name}": one for name, all_of in paths.items() for method, one in all_of.items()}
    assert {name for name, one in operations.items() if "503" in one["responses"]} == {
        "post /search",
        "post /embed",
        "get /evaluate",
        "post /evaluate",
        "post /feedback",
        "delete /feedback/{id}",
        "post /items",
        "patch /items/{id}",
        "delete /items/{id}",
        "get /model",
        "get /stats",
        "get /map",
        "get /collections",
        "get /readyz",
    }
    assert "409" in paths["/feedback"]["post"]["responses"]
