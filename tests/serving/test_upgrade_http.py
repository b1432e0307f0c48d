"""A gallery gets another model while `zoo serve` answers with two workers: nobody is refused, nothing is mixed."""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from serving import renewing
from serving.gallery import Gallery
from serving.gallery.backup import verify_gallery
from serving.gallery.rebuild import begin_upgrade
from serving.gallery.search import Models, Searcher
from serving.refusals import RefusedError
from serving.renewing import Renewing
from tests.serving import toys
from tests.serving.gallery.test_upgrade import run
from tests.serving.running import Running, serving, stopped
from zoo.models.load import Embedder, load

NUMBERS = itertools.count()
KEY = {"authorization": "Bearer write-key-of-the-upgrade"}


@pytest.fixture(scope="module")
def path(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("upgrade") / "gallery"))


@pytest.fixture(scope="module")
def service(path: Path) -> Iterator[Running]:
    with serving(
        path, "--workers", 2, environment={"ZOO_SERVE_WRITE_KEYS": KEY["authorization"].split()[1]}
    ) as running:
        yield running


class Users:
    """Threads that search by pictures of the gallery, each of which must find itself, and add and remove others."""

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
        """Wait until so many more searches and writes have been answered."""
        wanted = {name: self.answers[name] + count for name in ("search", "write")}
        ends = time.monotonic() + 60
        while any(self.answers[name] < wanted[name] for name in wanted) and not self.failures:
            assert time.monotonic() < ends
            time.sleep(0.05)

    def _run(self, work: Callable[[httpx.Client, int], None]) -> None:
        with httpx.Client(base_url=self.url, timeout=60, headers=KEY) as client:
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


def test_nobody_notices(
    service: Running, path: Path, pictures: Path, model: Embedder, other_model: Embedder, tmp_path: Path
) -> None:
    # Pictures that are added over HTTP here are small, and so their thumbnails are the pictures.
    for command, words, present in (
        ("gallery rebuild", ("--model", other_model.folder, "--swap"), other_model),
        ("gallery rollback", (), model),
    ):
        with Users(service.url, pictures) as users:
            users.until_more()
            assert run(command, path, *words) == 0
            users.until_more()
        assert users.failures == []
        assert_served(service, present, pictures)
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    with Gallery.open(path) as gallery:
        added = [item.id for item in gallery.store.items(limit=-1) if item.id > 24]
        expected = model.embed([gallery.store.thumbnail(item_id).data for item_id in added])
        np.testing.assert_allclose(gallery.store.embeddings(added)[1], expected, atol=1e-5)


def assert_served(service: Running, model: Embedder, pictures: Path) -> None:
    """Each worker answers with this model, in all that it answers."""
    picture = next(pictures.rglob("0.png"))
    for other in service.workers():
        with stopped(other):
            assert httpx.get(f"{service.url}/model").json()["fingerprint"] == model.card.fingerprint
            told = httpx.post(f"{service.url}/embed", content=picture.read_bytes()).json()
            assert told["fingerprint"] == model.card.fingerprint
            np.testing.assert_allclose(told["embeddings"][0], model.embed(picture)[0], atol=1e-5)
            for way in ("/stats", "/map", "/readyz", "/metrics", "/items", "/items/1/thumbnail"):
                assert httpx.get(f"{service.url}{way}").status_code == 200


def test_a_model_that_cannot_be_loaded_is_said_and_tried_again(
    gallery_folder: Path, tmp_path: Path, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    new = toys.write_model(tmp_path / "new", seed=5, name="new")
    searchers = Renewing(lambda: Searcher.open(path))
    old = searchers.current
    assert searchers.present() is old
    monkeypatch.setattr(renewing, "PAUSE", 0.0)
    with begin_upgrade(path, load(new, runtime="onnx"), str(new)) as upgrade:
        assert upgrade.embed() == []
        upgrade.swap()
    new.rename(tmp_path / "away")
    picture = Image.new("RGB", (32, 32))
    for _ in range(2):
        with pytest.raises(RefusedError, match="cannot load") as caught:
            searchers.steadily(lambda searcher: searcher.by_image(picture, 3))
        assert (caught.value.status, caught.value.code) == (503, "model_changed")
        assert "Retry-After" in caught.value.headers
        assert searchers.current.gallery.store.count() == 24, "what needs no model is still there"
    (tmp_path / "away").rename(new)
    found = searchers.steadily(lambda searcher: (searcher.embedder.card.name, searcher.by_image(picture, 3)))
    assert (found[0], len(found[1])) == ("new", 3)
    assert searchers.current is not old
    store = old.gallery.store
    del old, caught
    gc.collect()
    with pytest.raises(Exception, match="closed"):
        store.change()  # nobody was left who needed it
    searchers.close()


def test_many_threads_open_the_new_model_once(gallery_folder: Path, tmp_path: Path, other_model: Embedder) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    opened: list[Searcher] = []

    def open_searcher() -> Searcher:
        opened.append(Searcher.open(path))
        return opened[-1]

    searchers = Renewing(open_searcher)
    searchers.present()
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade:
        upgrade.embed()
        upgrade.swap()
    found: list[Searcher] = []
    threads = [threading.Thread(target=lambda: found.append(searchers.present())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    assert {id(one) for one in found} == {id(opened[1])}
    searchers.close()
    opened[0].close()


def test_a_model_that_is_announced_is_loaded_before_it_is_needed(
    gallery_folder: Path, tmp_path: Path, other_model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    loads: list[str] = []

    def counted(ref: str, runtime: str, precision: str, device: str | None) -> Embedder:
        loads.append(ref)
        return load(ref, runtime, precision, device)

    monkeypatch.setattr("serving.gallery.search.load", counted)
    served = Models()
    searchers = Renewing(lambda: Searcher.open(path, models=served), models=served)
    searchers.look()
    ref = str(other_model.folder)
    with begin_upgrade(path, other_model, ref) as upgrade:
        upgrade.embed()
        with upgrade.announced():
            searchers.look()
            assert loads[1:] == [ref]
        searchers.look()
        assert searchers._prepared is None, "it was withdrawn"
        with upgrade.announced():
            searchers.look()
            before = len(loads)
            upgrade.swap(notice=0)
        assert searchers.present().embedder.card == other_model.card
        searchers.look()
    assert len(loads) == before
    searchers.close()


def test_a_watcher_takes_the_new_model_over_by_itself(
    gallery_folder: Path, tmp_path: Path, other_model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "EVERY", 0.02)
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    searchers = Renewing(lambda: Searcher.open(path))
    old = searchers.current.embedder.card
    searchers.watch()
    with begin_upgrade(path, other_model, str(other_model.folder)) as upgrade:
        upgrade.embed()
        upgrade.swap()
    ends = time.monotonic() + 30
    while searchers.current.embedder.card == old:
        assert time.monotonic() < ends
        time.sleep(0.01)
    searchers.close()
