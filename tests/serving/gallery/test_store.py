"""SQLite store: items, changes, threads, killed writers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gallery import schema
from serving.gallery.filters import Filter
from serving.gallery.store import Store
from serving.gallery.types import NewItem, Thumbnail
from tests.raising import raises
from tests.serving import toys
from zoo.errors import GalleryError, GalleryNotFoundError, ItemNotFoundError

DIM = 8
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).map(partial(unicodedata.normalize, "NFC"))
SOURCE = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1, max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def new_item(number: int, **changes: object) -> NewItem:
    vector = np.random.default_rng(number).normal(size=DIM)
    vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    values = {
        "source": f"{number}.png",
        "embedding": vector,
        "thumbnail": toys.thumbnail(number),
        "content_sha256": f"{number:064x}",
        "label": f"label {number % 3}",
    }
    return NewItem(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema.create(tmp_path / "gallery.sqlite", DIM, "fingerprint")
    return tmp_path / "gallery.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=SOURCE, label=st.none() | TEXT, metadata=st.dictionaries(TEXT, JSON, max_size=4), picture=st.binary())
def test_items_are_read_as_they_were_added(path: Path, source: str, label: str, metadata: dict, picture: bytes) -> None:
    store = Store(path)
    number = store.count() + 1
    thumbnail = Thumbnail(b"\xff\xd8\xff" + picture, "image/jpeg")
    item = new_item(number, source=source, label=label, metadata=metadata, thumbnail=thumbnail)
    (item_id,) = store.add([item]).ids
    store.close()
    reopened = Store(path)
    read = reopened.item(item_id)
    assert (read.source, read.label, read.metadata) == (source, label, metadata)
    assert read.content_sha256 == item.content_sha256
    assert reopened.thumbnail(item_id) == thumbnail
    np.testing.assert_array_equal(reopened.embedding(item_id), item.embedding)
    assert reopened.items_by_id([item_id, 10**15]) == {item_id: read}
    reopened.close()


def test_known_images_are_not_added_again(store: Store) -> None:
    first = store.add([new_item(1), new_item(2)])
    again = store.add([new_item(2, source="other name"), new_item(3), new_item(3)])
    assert (first.ids, first.new) == ([1, 2], 2)
    assert again.ids[0] == 2
    assert again.ids[1] == again.ids[2]
    assert again.new == 1
    assert store.item(2).source == "2.png"
    assert store.item_of_content(f"{3:064x}") == store.item(again.ids[1])
    assert store.item_of_content(f"{4:064x}") is None
    assert [place.source for place in store.places()] == ["1.png", "2.png", "3.png"]


def test_every_change_has_a_number_and_is_streamed(store: Store) -> None:
    assert store.change() == 0
    store.add([new_item(1), new_item(2)])
    assert store.change() == 1
    store.add([new_item(1)])
    assert store.remove([99, -1, 2**70]) == 0
    assert store.change() == 1, "nothing changed, so there is no new number"
    store.add([new_item(3)])
    assert store.remove([1, 1, 99]) == 1
    assert store.change() == 3
    with store.stream_changes(1) as changes:
        ((ids, vectors),) = changes.blocks
    assert (changes.number, changes.count, changes.removed.tolist(), ids.tolist()) == (3, 2, [1], [3])
    np.testing.assert_array_equal(vectors, [new_item(3).embedding])
    with store.stream_changes(0) as changes:
        ((ids, _),) = changes.blocks
    assert (ids.tolist(), changes.removed.tolist()) == ([2, 3], [])
    assert store.add([new_item(1)]).ids == [4], "an id is never used twice"


def test_invalid_item_leaves_the_whole_batch_out(store: Store) -> None:
    store.add([new_item(1)])
    for bad in (
        {"embedding": np.zeros(DIM, np.float32)},
        {"embedding": np.full(DIM, np.nan, np.float32)},
        {"embedding": np.ones(DIM + 1, np.float32)},
        {"embedding": np.eye(DIM)[0]},
        {"metadata": {"x": float("nan")}},
        {"metadata": {"x": object()}},
        {"source": "\ud800"},
    ):
        with pytest.raises(GalleryError):
            store.add([new_item(2), new_item(3, **bad)])
    assert store.count() == 1
    assert store.change() == 1


def test_items_by_page_and_label(store: Store) -> None:
    store.add([new_item(n) for n in range(1, 11)])
    assert [item.id for item in store.items(offset=3, limit=4)] == [4, 5, 6, 7]
    assert [item.id for item in store.items(offset=1, limit=2, selection=Filter(("label 0",)))] == [6, 9]
    assert store.count(Filter(("label 0",))) == 3
    assert store.count(Filter(("' OR 1=1 --",))) == 0
    stats = store.stats()
    assert (stats.items, stats.labels, stats.change) == (10, 3, 1)


def test_sample_has_different_items_from_all_ids(store: Store) -> None:
    assert store.sample(5) == []
    store.add([new_item(n) for n in range(1, 101)])
    store.remove(range(20, 60))
    seen = set()
    for seed in range(60):
        ids = [item.id for item in store.sample(9, seed)]
        assert len(ids) == len(set(ids)) == 9
        seen |= set(ids)
    assert seen == {*range(1, 20), *range(60, 101)}
    assert {item.id for item in store.sample(1000)} == seen


def test_unknown_ids_are_not_found(store: Store) -> None:
    for item_id in (1, 0, -1, 2**63, 10**30):
        for read in (store.item, store.thumbnail, store.embedding):
            with pytest.raises(ItemNotFoundError):
                read(item_id)


def test_other_files_are_refused(tmp_path: Path, path: Path) -> None:
    with raises(GalleryNotFoundError):
        Store(tmp_path / "none")
    (tmp_path / "text").write_text("no database" * 100)
    with raises(GalleryError, "damaged-gallery"):
        Store(tmp_path / "text")
    with closing(sqlite3.connect(tmp_path / "other")) as database:
        database.executescript("CREATE TABLE t (x)")
    with raises(GalleryError, "not-a-gallery"):
        Store(tmp_path / "other")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE state SET value = 'hamming' WHERE key = 'metric'")
    with raises(GalleryError, "unknown-name", "hamming"):
        Store(path)


def test_threads_share_a_store(store: Store) -> None:
    failures = []

    def work(start: int) -> None:
        try:
            for n in range(start, start + 30):
                (item_id,) = store.add([new_item(n)]).ids
                assert store.item(item_id).source == f"{n}.png"
                with store.stream_changes(0) as changes:
                    assert changes.count == sum(len(ids) for ids, _ in changes.blocks) >= 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (1000, 2000, 3000, 4000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.count() == 120
    assert store.change() == 120


def test_reading_does_not_wait_for_a_writer(store: Store, path: Path) -> None:
    store.add([new_item(1)])
    with closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        waiting = threading.Thread(target=store.add, args=([new_item(2)],))
        waiting.start()
        time.sleep(0.2)  # the thread waits for the lock by now
        assert store.count() == 1
        with store.stream_changes(0) as changes:
            assert changes.count == 1
        assert waiting.is_alive()
        another.execute("ROLLBACK")
    waiting.join()
    assert store.count() == 2


def test_snapshot_does_not_see_later_writes_of_the_same_store(store: Store) -> None:
    store.add([new_item(1)])
    with store.database.snapshot():
        assert store.count() == 1
        writer = threading.Thread(target=store.add, args=([new_item(2)],))
        writer.start()
        writer.join()
        assert store.count() == 1
    assert store.count() == 2


WRITER = """
import sys
from pathlib import Path
from serving.gallery.store import Store
from tests.serving.gallery.test_store import new_item

store = Store(Path(sys.argv[1]))
for batch in range(int(sys.argv[2]), 10**6):
    removed = store.items(limit=1)[0].id if batch % 4 == 0 else 0
    store.add([new_item(10 * batch + i, label=str(batch)) for i in range(5)])
    print("added", batch, flush=True)
    if removed:
        store.remove([removed])
        print("removed", removed, flush=True)
"""


@pytest.mark.slow
def test_killed_writer_loses_no_acknowledged_write(path: Path) -> None:
    store = Store(path)
    store.add([new_item(10**7 + n, label="old") for n in range(500)])
    added: set[int] = set()
    removed: set[int] = set()
    start = 10
    for round_number in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(3)]
        time.sleep(0.01 + 0.037 * round_number)
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.stdout.close()
        writer.wait()
        for line in lines:
            word, number = line.split()
            (added if word == "added" else removed).add(int(number))
        start = max(added) + 2

        reopened = Store(path)
        items = reopened.items(limit=10**6)
        per_batch: dict[str, int] = {}
        for item in items:
            if item.label and item.label.isdigit():
                per_batch[item.label] = per_batch.get(item.label, 0) + 1
        assert not removed & {item.id for item in items}
        assert added <= {int(label) for label in per_batch}
        assert set(per_batch.values()) == {5}, "half a batch"
        with reopened.stream_changes(0) as changes:
            assert changes.count == len(items) == sum(len(ids) for ids, _ in changes.blocks)
        assert reopened.change() == changes.number == store.change()
        for item in items:
            reopened.thumbnail(item.id)
        reopened.close()
    assert len(added) >= 8
    assert removed


def test_embeddings_keep_the_order_of_the_ids(path: Path) -> None:
    with closing(Store(path)) as store:
        ids = store.add([new_item(number) for number in range(1200)]).ids
        wanted = [ids[700], ids[3], ids[1199], *ids[:600], ids[3]]
        expected = [store.embedding(item_id) for item_id in wanted]
        present, rows = store.embeddings([*wanted[:1], 4000, *wanted[1:]])
        assert present == list(wanted), "without the id that does not exist"
        np.testing.assert_array_equal(rows, expected)
        assert store.embeddings([])[1].shape == (0, DIM)
