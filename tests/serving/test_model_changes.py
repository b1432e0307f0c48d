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
from serving.keys import Keys
from serving.openapi import document
from serving.renewing import Renewing
from serving.searcher import Searcher
from serving.upgrading import upgrading
from tests.serving import toys
from zoo.embedder import Embedder

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
    operations = {f"{method} {name}": one for name, all_of in paths.items() for method, one in all_of.items()}
    assert {name for name, one in operations.items() if "503" in one["responses"]} == {
        "post /search",
        "post /embed",
        "get /evaluate",
        "post /evaluate",
        "post /feedback",
        "delete /feedback/{id}",
        "post /items",
        "get /model",
        "get /stats",
        "get /map",
        "get /collections",
        "get /readyz",
    }
    assert "409" in paths["/feedback"]["post"]["responses"]
