"""Items against a model in memory: random sequences of changes of files and items, indexing, pruning and `kill -9`."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from serving.gallery import VectorGallery, indexing
from serving.gallery.backup import verify_gallery
from serving.gallery.image_files import IndexingReport, find_images
from serving.gallery.indexing import index_folder
from serving.gallery.store import Store
from tests.serving import toys
from tests.serving.running import ROOT
from zoo.models.load import Embedder

PATHS = ("1.png", "2.png", "a/1.png", "a/2.png", "b/1.png", "b/c/3.png")
CONTENTS = 5
PLACE, CONTENT = st.sampled_from(PATHS), st.integers(0, CONTENTS - 1)
STEP = st.one_of(
    st.tuples(st.just("write"), PLACE, CONTENT),
    st.tuples(st.just("move"), PLACE, PLACE),
    st.tuples(st.just("copy"), PLACE, PLACE),
    st.tuples(st.just("delete"), PLACE),
    st.tuples(st.just("describe"), PLACE, st.sampled_from(["x", "a", None]), st.integers(0, 9)),
    st.tuples(st.just("remove"), PLACE),
    st.tuples(st.just("index"), st.booleans(), st.booleans()),
)


def picture(content: int) -> bytes:
    pixels = np.random.default_rng(content).integers(0, 256, (24, 24, 3), np.uint8)
    return toys.encoded(Image.fromarray(pixels))


def folder_label(path: str) -> str | None:
    return path.rpartition("/")[0] or None


@dataclass
class Known:
    """ItemPlace, image, label and metadata of an item."""

    path: str
    content: int
    label: str | None
    metadata: dict[str, int] = field(default_factory=dict)


@dataclass
class Model:
    """Files of a folder and the items of its gallery by number, as README and documents promise them."""

    files: dict[str, int] = field(default_factory=dict)
    items: dict[int, Known] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    last: int = 0

    def at(self, path: str) -> int | None:
        return next((number for number, item in self.items.items() if item.path == path), None)

    def index(self, order: list[str], prune: bool, readd: bool) -> None:
        """Index the files in their order."""
        found: set[int] = set()
        removed = {} if readd else self.removed
        for path in order:
            content = self.files[path]
            number = self.at(path)
            if number is None:
                gone = [
                    (item.path.rpartition("/")[2] != path.rpartition("/")[2], number)
                    for number, item in self.items.items()
                    if item.content == content and item.path not in self.files and number not in found
                ]
                if gone:
                    number = min(gone)[1]
                    item = self.items[number]
                    if item.label in (None, folder_label(item.path)):
                        item.label = folder_label(path) or item.label
                    item.path = path
                    self.removed.pop(path, None)
            if number is not None:
                self.items[number].content = content
                found.add(number)
                continue
            if path in removed:
                removed[path] = content
                continue
            moved = sorted(
                (other.rpartition("/")[2] != path.rpartition("/")[2], rank, other)
                for rank, (other, known) in enumerate(removed.items())
                if known == content and other not in self.files
            )
            if moved:
                self.removed = removed = {
                    path if other == moved[0][2] else other: known for other, known in removed.items()
                }
                continue
            self.last += 1
            self.items[self.last] = Known(path, content, folder_label(path))
            found.add(self.last)
            self.removed.pop(path, None)
        if prune and order:
            self.items = {number: item for number, item in self.items.items() if number in found}


class World:
    """A folder, its gallery, and the model of both."""

    def __init__(self, root: Path, embedder: Embedder) -> None:
        self.folder, self.gallery, self.embedder = root / "pictures", root / "gallery", embedder
        self.folder.mkdir()
        self.model = Model()

    def take(self, step: tuple) -> None:
        match step:
            case ("write", path, content):
                self.write(path, content)
            case ("move", old, new) if old in self.model.files and old != new:
                self.write(new, self.model.files[old])
                self.delete(old)
            case ("copy", old, new) if old in self.model.files:
                self.write(new, self.model.files[old])
            case ("delete", path) if path in self.model.files:
                self.delete(path)
            case ("describe", path, label, value) if (number := self.model.at(path)) is not None:
                self.model.items[number].label, self.model.items[number].metadata = label, {"value": value}
                with VectorGallery.open(self.gallery) as gallery:
                    gallery.store.describe(number, label, {"value": value})
            case ("remove", path) if (number := self.model.at(path)) is not None:
                item = self.model.items.pop(number)
                self.model.removed[item.path] = item.content
                with VectorGallery.open(self.gallery) as gallery:
                    assert gallery.remove([number], remember=True) == 1
            case ("index", prune, readd) if self.model.files:
                self.index(prune, readd)
                self.check()

    def write(self, path: str, content: int) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(picture(content))
        self.model.files[path] = content

    def delete(self, path: str) -> None:
        (self.folder / path).unlink()
        del self.model.files[path]

    def index(self, prune: bool, readd: bool) -> IndexingReport:
        self.model.index([file.source for file in find_images(self.folder)[0]], prune, readd)
        pruning = (lambda gallery, ids: True) if prune else None
        return index_folder(self.embedder, "toy", self.folder, self.gallery, batch_size=2, prune=pruning, readd=readd)

    def check(self) -> None:
        """Compare all that the gallery says with the model."""
        hashes = {hashlib.sha256(picture(content)).hexdigest(): content for content in range(CONTENTS)}
        with VectorGallery.open(self.gallery) as gallery:
            items = {
                item.id: Known(item.source, hashes[item.content_sha256], item.label, item.metadata)
                for item in gallery.store.items(limit=-1)
            }
            assert items == self.model.items
            by_content = Counter(item.content for item in items.values())
            for content in by_content:
                hits = gallery.search(self.embedder.embed([picture(content)]), 50)[0]
                assert len(hits) == len(by_content), "one result per image"
                shown = {hits[0].id, *(other.id for other in hits[0].also)}
                assert shown == {number for number, item in items.items() if item.content == content}
        assert [check for check in verify_gallery(self.gallery) if check.ok is False] == []


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(STEP, max_size=12))
def test_items_are_those_of_the_model(model: Embedder, steps: list[tuple]) -> None:
    follow(model, steps)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(STEP, max_size=25))
def test_items_are_those_of_the_model_after_many_steps(model: Embedder, steps: list[tuple]) -> None:
    follow(model, steps)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run write in steps of two files, as a run over a large folder does."""
    monkeypatch.setattr(indexing, "KNOWN_AT_ONCE", 2)


def follow(model: Embedder, steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root), model)
        world.take(("write", PATHS[0], 0))
        for step in [("index", False, False), *steps, ("index", True, False)]:
            world.take(step)


WRITER = """
import sys
from pathlib import Path
from serving.gallery.indexing import index_folder
from zoo.models.load import load

model, folder, gallery, prune = load(sys.argv[1], runtime="onnx"), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "1"
for line in sys.stdin:
    index_folder(model, "toy", folder, gallery, batch_size=1, prune=(lambda gallery, ids: True) if prune else None)
    print("done", flush=True)
"""


def killed(world: World, prune: bool, seconds: float) -> None:
    """Index in another process, which is killed after some time, or ends before."""
    words = [sys.executable, "-c", WRITER, world.embedder.folder, world.folder, world.gallery, int(prune)]
    with subprocess.Popen(
        list(map(str, words)), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as writer:  # fmt: skip
        assert writer.stdin
        before = database_bytes(world.gallery)
        writer.stdin.write("\n")
        writer.stdin.flush()
        while writer.poll() is None and database_bytes(world.gallery) == before and seconds > -20:
            time.sleep(0.002)
            seconds -= 0.002
        time.sleep(max(0.0, seconds) % 0.05)
        os.kill(writer.pid, signal.SIGKILL)


def database_bytes(gallery: Path) -> tuple[float, ...]:
    return tuple(path.stat().st_mtime for path in sorted(gallery.glob("gallery.sqlite*")) if path.exists())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_was_killed_and_taken_up_is_one_run(model: Embedder, tmp_path: Path, seed: int) -> None:
    rng, world = random.Random(seed), World(tmp_path, model)
    for number, path in enumerate(PATHS):
        world.write(path, number % CONTENTS)
    world.index(False, False)
    for _ in range(4):
        for _ in range(6):
            world.take(change(rng))
        if not world.model.files:
            continue
        killed(world, prune := rng.random() < 0.5, rng.random())
        world.index(prune, False)
        world.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_broke_off_after_any_write_and_was_taken_up_is_one_run(
    model: Embedder, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, world = random.Random(seed), World(tmp_path, model)
    for number, path in enumerate(PATHS):
        world.write(path, number % CONTENTS)
    world.index(False, False)
    for _ in range(4):
        for _ in range(6):
            world.take(change(rng))
        if not world.model.files:
            continue
        prune, left = rng.random() < 0.5, iter(range(rng.randrange(1, 5)))
        with monkeypatch.context() as broken:
            for name in ("add", "update", "remove", "move_removed"):
                broken.setattr(Store, name, breaking(getattr(Store, name), left))
            with suppress(KeyboardInterrupt):
                index_folder(
                    model, "toy", world.folder, world.gallery, prune=(lambda gallery, ids: True) if prune else None
                )
        world.index(prune, False)
        world.check()


def breaking(write: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    """Return a write that breaks off the run once none is left."""

    def written(*arguments: Any, **values: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(*arguments, **values)

    return written


def change(rng: random.Random) -> tuple:
    places = rng.choice(PATHS), rng.choice(PATHS)
    steps = [
        ("write", places[0], rng.randrange(CONTENTS)), ("move", *places), ("copy", *places), ("delete", places[0]),
        ("describe", places[0], rng.choice(["x", None]), rng.randrange(9)), ("remove", places[0]),
    ]  # fmt: skip
    return rng.choice(steps)


ROWS = st.dictionaries(
    st.sampled_from(["K1", "K2", "K3", "K4"]),
    st.tuples(st.sampled_from(PATHS[:4]), st.integers(0, 9)),
    min_size=1,
)
FILES = st.dictionaries(st.sampled_from(PATHS[:4]), CONTENT, min_size=1)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(FILES, ROWS, st.booleans()), min_size=1, max_size=4))
def test_products_of_a_table_keep_their_keys(model: Embedder, nights: list[tuple]) -> None:
    """Every row whose file is there is an item of its own, for all changes of files and of other rows."""
    with tempfile.TemporaryDirectory() as root:
        folder, table, gallery = Path(root) / "shop", Path(root) / "shop.csv", Path(root) / "gallery"
        expected: dict[str, tuple[str, str, int, str]] = {}
        ids: dict[str, int] = {}
        for files, rows, prune in nights:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            listed = {key: row for key, row in rows.items() if row[0] in files}
            for name in {name for name, _ in listed.values()}:
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(picture(files[name]))
            if not listed:
                continue
            lines = [f"{name},{key},label {key},{price}\n" for key, (name, price) in rows.items()]
            table.write_text("path,key,label,price\n" + "".join(lines))
            pruning = (lambda gallery, ids: True) if prune else None
            report = index_folder(model, "toy", folder, gallery, labels=table, prune=pruning)
            assert (report.refused, report.unreadable) == ([], [])
            hashes = {name: hashlib.sha256(picture(content)).hexdigest() for name, content in files.items()}
            now = {key: (name, f"label {key}", price, hashes[name]) for key, (name, price) in listed.items()}
            expected = now if prune else expected | now
            with VectorGallery.open(gallery) as opened:
                items = {item.key: item for item in opened.store.items(limit=-1) if item.key is not None}
            found = {
                key: (item.source, item.label, item.metadata["price"], item.content_sha256)
                for key, item in items.items()
            }
            assert found == expected
            assert all(ids.get(str(key), item.id) == item.id for key, item in items.items()), "the same ids"
            ids = {str(key): item.id for key, item in items.items()}
