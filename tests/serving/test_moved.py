"""A gallery's folder that is moved, removed or exchanged while it is open: nothing is written where nobody looks."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from serving import renewing
from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import WRITE_KEYS
from serving.gallery import Gallery
from serving.gallery.gallery import STORE
from serving.gallery.search import Searcher
from serving.keys import Keys
from serving.renewing import Renewing
from tests.serving import toys
from zoo.errors import GalleryMovedError

KEY = "write-key-of-the-moved"


@pytest.fixture
def path(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "g"))


@pytest.fixture
def smaller(path: Path, tmp_path: Path) -> Path:
    """Another gallery, of the same model."""
    other = Path(shutil.copytree(path, tmp_path / "other"))
    with Gallery.open(other) as gallery:
        gallery.remove(list(range(1, 13)))
    return other


@pytest.fixture
def client(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(renewing, "PAUSE", 0.0)
    searchers = Renewing(lambda: Searcher.open(path))
    app = create_app(Collections([Collection("", searchers, Keys.of({WRITE_KEYS: KEY}))]))
    with TestClient(app, "http://localhost", headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client
    searchers.close()


def rows_in(folder: Path) -> int:
    db = sqlite3.connect(folder / STORE)
    (count,) = db.execute("SELECT count(*) FROM items").fetchone()
    db.close()
    return int(count)


def exchange(path: Path, other: Path) -> Path:
    before = path.rename(path.with_name("before"))
    other.rename(path)
    return before


def test_what_is_not_in_its_place_is_neither_read_nor_written(path: Path) -> None:
    with Gallery.open(path) as gallery:
        away = path.rename(path.with_name("away"))
        for work in (
            gallery.store.count,
            gallery.store.check_current,
            lambda: gallery.remove([1]),
            lambda: gallery.store.item(1),
        ):
            with pytest.raises(GalleryMovedError, match="the gallery g was moved, removed or exchanged for another"):
                work()
        assert rows_in(away) == 24
        away.rename(path)
        assert gallery.remove([1]) == 1  # it is back
    assert rows_in(path) == 23


def test_changes_of_a_gallery_that_is_gone_are_refused(client: TestClient, path: Path) -> None:
    assert client.get("/readyz").status_code == 200
    away = path.rename(path.with_name("away"))
    refused = [
        client.post("/items", content=toys.query(1) + b"another file"),
        client.patch("/items/5", json={"label": "a"}),
        client.delete("/items/5"),
        client.post("/search", content=toys.query(1)),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gallery_moved")
        assert str(path) not in answer.text
    away.rename(path)
    assert client.delete("/items/5").status_code == 200
    assert rows_in(path) == 23


def test_a_gallery_in_the_place_of_another_is_taken_up(client: TestClient, path: Path, smaller: Path) -> None:
    assert client.get("/stats").json()["items"] == 24
    before = exchange(path, smaller)
    assert client.post("/search?k=1", content=toys.query(1)).status_code == 200
    assert client.get("/stats").json()["items"] == 12
    assert client.post("/items", content=toys.query(1) + b"another file").status_code == 201
    assert (rows_in(before), rows_in(path)) == (24, 13)
    # What closes the old file leaves the new one's log alone.
    with Gallery.open(path) as gallery:
        assert gallery.store.count() == 13
