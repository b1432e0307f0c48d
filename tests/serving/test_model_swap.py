"""A gallery gets another model, or its folder is moved or replaced, while the service answers."""

from __future__ import annotations

import gc
import itertools
import logging
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from serving import model_swap
from serving.errors import RefusedError
from serving.gallery import VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.query import SearchQuery
from serving.gallery.rebuild import begin_upgrade
from serving.gallery.search import Models, Searcher, SearchOptions
from serving.model_swap import CurrentSearcher
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import Running, local_client, serving, stopped
from zoo.errors import GalleryMovedError
from zoo.models.load import Embedder, load

KEY = "write-key-of-the-swaps"
NUMBERS = itertools.count()


@pytest.fixture
def client(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(model_swap, "RETRY_SECONDS", 0.0)
    with local_client(path, KEY) as client:
        yield client


class Users:
    """Threads that search by pictures of the gallery, which must find themselves, and add and remove others."""

    def __init__(self, url: str, pictures: Path) -> None:
        self.url, self.stop, self.failures = url, threading.Event(), list[str]()
        self.files = sorted(path for path in pictures.rglob("*") if path.is_file())
        self.answers: Counter[str] = Counter()
        self.threads = [threading.Thread(target=self._run, args=(one,)) for one in (self._search, self._write)]

    def __enter__(self) -> Users:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def until_more(self, count: int = 8) -> None:
        """Wait for this many more answers to searches and to writes."""
        wanted = {name: self.answers[name] + count for name in ("search", "write")}
        ends = time.monotonic() + 60
        while any(self.answers[name] < wanted[name] for name in wanted) and not self.failures:
            assert time.monotonic() < ends
            time.sleep(0.05)

    def _run(self, work: Callable[[httpx.Client, int], None]) -> None:
        with httpx.Client(base_url=self.url, timeout=60, headers={"x-api-key": KEY}) as client:
            while not self.stop.is_set():
                try:
                    work(client, next(NUMBERS))
                    time.sleep(0.01)
                except Exception as error:
                    self.failures.append(repr(error))
                    return

    def _search(self, client: httpx.Client, number: int) -> None:
        file = self.files[number % len(self.files)]
        answer = client.post("/search?k=3", content=file.read_bytes())
        best = answer.json()["results"][0] if answer.status_code == 200 else answer.text
        if answer.status_code != 200 or not best["source"].endswith(file.name) or abs(best["similarity"] - 1) > 1e-4:
            self.failures.append(f"search: {answer.status_code} {best}")
        self.answers["search"] += 1

    def _write(self, client: httpx.Client, number: int) -> None:
        picture = toys.encoded(toys.picture(number % 4, np.random.default_rng(1000 + number)))
        answer = client.post("/items", files={"image": (f"{number}.png", picture)})
        if answer.status_code != 201:
            self.failures.append(f"add: {answer.status_code} {answer.text}")
            return
        wanted = answer.json()["items"][0]["id"]
        best = client.post("/search?k=1", content=picture).json()["results"][0]
        if best["id"] != wanted or abs(best["similarity"] - 1) > 1e-4:
            self.failures.append(f"what was added is not found: {best}")
        if number % 2 and client.delete(f"/items/{wanted}").status_code != 200:
            self.failures.append("remove")
        self.answers["write"] += 1


@pytest.mark.slow
def test_nobody_notices_a_swap(
    gallery_folder: Path, pictures: Path, model: Embedder, other_model: Embedder, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))
    with serving(path, "--workers", 2, environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as service:
        for command, words, present in (
            ("gallery rebuild", ("--model", other_model.folder, "--swap"), other_model),
            ("gallery rollback", (), model),
        ):
            with Users(service.url, pictures) as users:
                users.until_more()
                assert run_here(command, path, *words) == 0
                users.until_more()
            assert users.failures == []
            assert_served(service, present, pictures)
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    with VectorGallery.open(path) as gallery:
        added = [item.id for item in gallery.store.items(limit=-1) if item.id > 24]
        # Pictures that are added here are small, and so their thumbnails are the pictures.
        expected = model.embed([gallery.store.thumbnail(item_id).data for item_id in added])
        np.testing.assert_allclose(gallery.store.embeddings(added)[1], expected, atol=1e-5)


def assert_served(service: Running, model: Embedder, pictures: Path) -> None:
    """Check that every worker answers with this model."""
    picture = next(pictures.rglob("0.png"))
    for other in service.workers():
        with stopped(other):
            assert httpx.get(f"{service.url}/model").json()["fingerprint"] == model.card.fingerprint
            told = httpx.post(f"{service.url}/embed", content=picture.read_bytes()).json()
            assert told["fingerprint"] == model.card.fingerprint
            np.testing.assert_allclose(told["embeddings"][0], model.embed(picture)[0], atol=1e-5)
            for way in ("/stats", "/map", "/readyz", "/metrics", "/items", "/items/1/thumbnail"):
                assert httpx.get(f"{service.url}{way}").status_code == 200


def test_a_model_that_cannot_be_loaded_is_refused_and_tried_again(
    path: Path, tmp_path: Path, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = toys.write_model(tmp_path / "new", seed=5, name="new")
    current = CurrentSearcher(lambda: Searcher.open(path))
    old = current.searcher
    assert current.latest() is old
    monkeypatch.setattr(model_swap, "RETRY_SECONDS", 0.0)
    with begin_upgrade(path, load(new, runtime="onnx"), str(new)) as upgrade:
        assert upgrade.embed() == []
        upgrade.swap()
    new.rename(tmp_path / "away")
    query = SearchQuery.of(Image.new("RGB", (32, 32)))
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            current.run(lambda searcher: searcher.find(query, SearchOptions(3)))
        assert (caught.value.status_code, caught.value.code) == (503, "model_changed")
        assert "Retry-After" in caught.value.headers
        assert current.searcher.gallery.store.count() == 24
    (tmp_path / "away").rename(new)
    name, result = current.run(lambda searcher: (searcher.embedder.card.name, searcher.find(query, SearchOptions(3))))
    assert (name, len(result.hits)) == ("new", 3)
    assert current.searcher is not old
    store = old.gallery.store
    del old, caught
    gc.collect()
    with pytest.raises(Exception, match="closed"):
        store.change()
    current.close()


def test_many_threads_open_the_new_model_once(path: Path, other_model: Embedder) -> None:
    opened: list[Searcher] = []

    def open_searcher() -> Searcher:
        opened.append(Searcher.open(path))
        return opened[-1]

    current = CurrentSearcher(open_searcher)
    current.latest()
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade:
        upgrade.embed()
        upgrade.swap()
    found: list[Searcher] = []
    threads = [threading.Thread(target=lambda: found.append(current.latest())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    assert {id(one) for one in found} == {id(opened[1])}
    current.close()
    opened[0].close()


def test_a_model_that_is_announced_is_loaded_before_it_is_needed(
    path: Path, other_model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []

    def counted(ref: str, runtime: str, precision: str, device: str | None) -> Embedder:
        loads.append(ref)
        return load(ref, runtime, precision, device)

    monkeypatch.setattr("serving.gallery.search.load", counted)
    served = Models()
    current = CurrentSearcher(lambda: Searcher.open(path, models=served), models=served)
    current.look()
    ref = str(other_model.folder)
    with begin_upgrade(path, other_model, ref) as upgrade:
        upgrade.embed()
        with upgrade.announced():
            current.look()
            assert loads[1:] == [ref]
        current.look()
        assert current._prepared is None
        with upgrade.announced():
            current.look()
            before = len(loads)
            upgrade.swap(notice=0)
        assert current.latest().embedder.card == other_model.card
        current.look()
    assert len(loads) == before
    current.close()


def test_a_watcher_takes_the_new_model_over_by_itself(
    path: Path, other_model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_swap, "INTERVAL", 0.02)
    current = CurrentSearcher(lambda: Searcher.open(path))
    old = current.searcher.embedder.card
    current.start()
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade:
        upgrade.embed()
        upgrade.swap()
    ends = time.monotonic() + 30
    while current.searcher.embedder.card == old:
        assert time.monotonic() < ends
        time.sleep(0.01)
    current.close()


@pytest.fixture
def smaller(path: Path, tmp_path: Path) -> Path:
    """Another gallery of the same model."""
    other = Path(shutil.copytree(path, tmp_path / "other"))
    with VectorGallery.open(other) as gallery:
        gallery.remove(list(range(1, 13)))
    return other


def rows_in(folder: Path) -> int:
    db = sqlite3.connect(folder / STORE)
    (count,) = db.execute("SELECT count(*) FROM items").fetchone()
    db.close()
    return int(count)


def replace(path: Path, other: Path) -> Path:
    before = path.rename(path.with_name("before"))
    other.rename(path)
    return before


def test_a_gallery_that_was_moved_is_neither_read_nor_written(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        away = path.rename(path.with_name("away"))
        for work in (
            gallery.store.count,
            gallery.store.check_current,
            lambda: gallery.remove([1]),
            lambda: gallery.store.item(1),
        ):
            with raises(GalleryMovedError):
                work()
        assert rows_in(away) == 24
        away.rename(path)
        assert gallery.remove([1]) == 1
    assert rows_in(path) == 23


def test_requests_to_a_gallery_that_was_moved_are_refused(
    client: TestClient, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    warnings = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["serving.model_swap"]
    away.rename(path)
    assert client.delete("/items/5").status_code == 200
    assert rows_in(path) == 23


def test_a_gallery_in_the_place_of_another_is_taken_over(client: TestClient, path: Path, smaller: Path) -> None:
    assert client.get("/stats").json()["items"] == 24
    before = replace(path, smaller)
    assert client.post("/search?k=1", content=toys.query(1)).status_code == 200
    assert client.get("/stats").json()["items"] == 12
    assert client.post("/items", content=toys.query(1) + b"another file").status_code == 201
    assert (rows_in(before), rows_in(path)) == (24, 13)
    # Closing the old file leaves the write-ahead log of the new one alone.
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 13


def test_a_gallery_that_is_absent_for_a_second_is_served_as_soon_as_it_is_back(
    path: Path, smaller: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current = CurrentSearcher(lambda: Searcher.open(path))
    current.latest()
    path.rename(path.with_name("before"))
    returns, refusals = time.monotonic() + 1, 0
    with caplog.at_level(logging.WARNING, "serving"):
        while time.monotonic() < returns:
            with raises(GalleryMovedError):
                current.latest()
            refusals += 1
            time.sleep(0.02)
        smaller.rename(path)
        count = 0
        while not count:
            assert time.monotonic() < returns + 1.5
            with suppress(GalleryMovedError):
                count = current.latest().gallery.store.count()
            time.sleep(0.02)
    assert (count, len(caplog.records)) == (12, 1)
    assert refusals > 10
    current.close()


def test_an_embedding_is_of_the_model_that_its_answer_names(
    client: TestClient, path: Path, model: Embedder, other_model: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.post("/embed", content=toys.query(2)).json()["fingerprint"] == model.card.fingerprint
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade, caplog.at_level(logging.INFO, "serving"):
        upgrade.embed()
        upgrade.swap()
        told = client.post("/embed", content=toys.query(2)).json()
    (line,) = [record for record in caplog.records if "has another model now" in record.message]
    assert line.levelno == logging.INFO
    assert told["fingerprint"] == other_model.card.fingerprint
    np.testing.assert_allclose(told["embeddings"], other_model.embed([toys.query(2)]), atol=1e-5)


def test_a_description_is_answered_with_its_change(client: TestClient) -> None:
    before = client.get("/stats").json()["change"]
    changed = client.patch("/items/3", json={"label": "other"}).json()
    assert changed.pop("gallery_change") == client.get("/stats").json()["change"] == before + 1
    assert changed == client.get("/items/3").json()
