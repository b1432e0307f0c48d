"""Several who change one item at once, over real connections."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.gallery import VectorGallery
from serving.gallery.gallery import STORE
from serving.gallery.image_files import ImageFile
from serving.gallery.indexing import add_files
from serving.gallery.search import Searcher
from tests.serving import toys
from tests.serving.running import writing_to
from zoo.models.load import Embedder

KEY = "w" * 20


@pytest.fixture
def searcher(path: Path) -> Iterator[Searcher]:
    opened = Searcher.open(path)
    yield opened
    opened.close()


@pytest.fixture
def service(searcher: Searcher) -> Iterator[httpx.Client]:
    with writing_to(searcher, KEY) as client:
        yield client


def test_a_label_and_metadata_given_at_once_are_both_there(service: httpx.Client, path: Path) -> None:
    changes: list[dict[str, Any]] = [{"label": "of one"}, {"metadata": {"of": "another"}}]
    with ThreadPoolExecutor(2) as threads, closing(sqlite3.connect(path / STORE, isolation_level=None)) as third:
        third.execute("BEGIN IMMEDIATE")
        answers = [threads.submit(service.patch, "/items/1", json=change) for change in changes]
        time.sleep(0.3)  # both requests have come as far as they can while somebody else writes
        third.execute("ROLLBACK")
        assert [answer.result().status_code for answer in answers] == [200, 200]
    item = service.get("/items/1").json()
    assert (item["label"], item["metadata"]) == ("of one", {"of": "another"})


def test_adding_again_with_update_undoes_nothing_that_it_does_not_name(
    service: httpx.Client, searcher: Searcher, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = {"image": ("a.png", toys.query(0))}
    item = service.post("/items", files=picture, data={"label": "first"}).json()["items"][0]
    with VectorGallery.open(path) as another:
        change_before(monkeypatch, searcher.gallery, lambda: another.store.describe(item["id"], "of another", {}))
        fields = {"update": "true", "metadata": json.dumps({"of": "one"})}
        answer = service.post("/items", files=picture, data=fields)
    (item,) = answer.json()["items"]
    assert (answer.status_code, item["label"], item["metadata"]) == (200, "of another", {"of": "one"})


def test_files_added_with_update_undo_nothing_that_they_do_not_name(
    path: Path, model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(toys.query(1))
    with VectorGallery.open(path) as gallery, VectorGallery.open(path) as another:
        add_files(gallery, model, [ImageFile(file, "picture.png", "first")])
        item = gallery.store.items(offset=24)[0].id
        change_before(monkeypatch, gallery, lambda: another.store.describe(item, "first", {"of": "another"}))
        add_files(gallery, model, [ImageFile(file, "picture.png", "second")], update=True)
        now = gallery.store.item(item)
    assert (now.label, now.metadata) == ("second", {"of": "another"})


def change_before(monkeypatch: pytest.MonkeyPatch, gallery: VectorGallery, change: Callable[[], object]) -> None:
    """Another process is quicker: it writes once this one has read the item and before it describes it."""
    describe = gallery.store.describe

    def then(*said: Any, **given: Any) -> int:
        change()
        return describe(*said, **given)

    monkeypatch.setattr(gallery.store, "describe", then)
