"""Index files: processes that share them, compaction, full disks, read-only folders, older schemas."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.index_files import (
    DUE_AT_LEAST,
    EXACT,
    RETRY_SECONDS,
    BusyError,
    compact,
    compaction_lock,
    needs_compaction,
)
from serving.gallery.store import Store
from tests.raising import raises
from tests.serving.gallery.test_database import full_disk, unwritable
from tests.serving.gallery.test_gallery import CARD, assert_hits, by_id, generation, new_items, unit_rows
from tests.serving.toys import content
from zoo.errors import GalleryError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(200)))
    return tmp_path / "g"


def assert_whole(path: Path) -> None:
    assert [check for check in verify_gallery(path) if check.ok is False] == []


def together(*tasks: Callable[[], None]) -> None:
    """Run tasks in threads. Each opens the gallery itself, as a process does."""
    failures: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_concurrent_writers_readers_and_compactions(path: Path) -> None:
    """Check that readers find every item that was acknowledged before their search."""
    acknowledged: dict[int, np.ndarray] = {}
    done = threading.Event()

    def write(start: int) -> None:
        with VectorGallery.open(path) as gallery:
            for step in range(12):
                vectors = unit_rows(5, seed=start + step)
                ids = gallery.add(new_items(vectors, start + 5 * step)).ids
                acknowledged.update(zip(ids, vectors, strict=True))
                gallery.remove([ids[0]])

    def read() -> None:
        with VectorGallery.open(path) as gallery:
            while not done.is_set():
                known = dict(acknowledged)
                for item_id in list(known)[1::5][-2:]:
                    (hits,) = gallery.search(known[item_id][None], 3)
                    assert item_id in {hit.id for hit in hits}

    def compact_repeatedly() -> None:
        with VectorGallery.open(path) as gallery:
            while not done.is_set():
                gallery.index.compact()

    def write_both() -> None:
        try:
            together(lambda: write(1000), lambda: write(2000))
        finally:
            done.set()

    together(write_both, read, read, compact_repeatedly, compact_repeatedly)
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 200 + 2 * 12 * 4
    assert_whole(path)
    assert len(list(path.glob("*index-*"))) == 1


def test_reader_keeps_a_removed_generation(path: Path) -> None:
    with VectorGallery.open(path) as writer, VectorGallery.open(path) as reader:
        writer.index.compact()
        assert_hits(reader, by_id(unit_rows(200)))
        index = reader.index.current()
        writer.add(new_items(unit_rows(1, seed=3), 200))
        first = generation(path)
        writer.index.compact()
        assert not first.exists()
        assert len(index) == 200
        similarities, _ = index.search(unit_rows(3, seed=99), 200)
        assert np.isfinite(similarities).all()
        assert_hits(reader, by_id(np.concatenate([unit_rows(200), unit_rows(1, seed=3)])))
        assert reader.index.stats().waiting == 0


def test_only_one_process_compacts(path: Path) -> None:
    with (
        closing(Store(path / STORE)) as store,
        compaction_lock(path, wait=True),
        raises(BusyError),
    ):
        compact(path, store, wait=False)


def test_due_compaction_runs_at_close_and_in_background(tmp_path: Path) -> None:
    assert not needs_compaction(DUE_AT_LEAST, 0)
    assert needs_compaction(DUE_AT_LEAST + 1, 10 * DUE_AT_LEAST)
    assert not needs_compaction(DUE_AT_LEAST + 1, 10 * DUE_AT_LEAST + 10)
    vectors = unit_rows(2 * DUE_AT_LEAST + 2)
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(vectors[: DUE_AT_LEAST + 1]))
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.index.stats().frozen == DUE_AT_LEAST + 1, "the writer compacted at close"
        gallery.index.compact_in_background()
        gallery.add(new_items(vectors[DUE_AT_LEAST + 1 :], DUE_AT_LEAST + 1))
        gallery.search(unit_rows(1), 3)
        for _ in range(1000):
            if gallery.index.stats().frozen == len(vectors):
                break
            time.sleep(0.01)
        assert gallery.index.stats().waiting == 0
        (hits,) = gallery.search(vectors[-1:], 1)
        assert hits[0].id == len(vectors)


@pytest.mark.parametrize("in_background", [False, True])
def test_closing_does_not_wait_for_a_compaction(tmp_path: Path, in_background: bool) -> None:
    """Leave a due compaction to another process that compacts, or to the background of a service."""
    gallery = VectorGallery.create(tmp_path / "g", CARD, "toy")
    if in_background:
        gallery.index.compact_in_background()
    with compaction_lock(tmp_path / "g", wait=True):
        gallery.add(new_items(unit_rows(DUE_AT_LEAST + 1)))
        gallery.close()
    assert not list((tmp_path / "g").glob("index-*"))
    assert_whole(tmp_path / "g")


def test_readers_do_not_compact(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(DUE_AT_LEAST + 1)))
    generation(tmp_path / "g").rename(tmp_path / "gone")
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert len(gallery.search(unit_rows(1), 5)[0]) == 5
    assert not list((tmp_path / "g").glob("index-*"))


def test_full_disk_loses_nothing(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.index.compact()
        before, generations = gallery.store.items(limit=300), list(path.glob("index-*"))
        largest = max(file.stat().st_size for file in path.iterdir() if file.is_file())
        with full_disk(largest + 4096):
            for _ in range(2):
                with pytest.raises(GalleryError) as caught:
                    gallery.add(new_items(unit_rows(300, seed=1), 200))
                assert caught.value.code in ("disk-full", "database")
            assert gallery.store.items(limit=300) == before
            assert_hits(gallery, by_id(unit_rows(200)))
        assert gallery.store.items(limit=300) == before
        assert_whole(path)
        size = (generations[0] / EXACT).stat().st_size
        for limit in (size - 1, size // 2, 10):
            with full_disk(limit), raises(GalleryError, "not-writable"):
                gallery.index.compact()
            assert list(path.glob("*index-*")) == generations
        gallery.add(new_items(unit_rows(1, seed=1), 200))
        gallery.index.compact()
    assert_whole(path)
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 201


def test_background_compaction_retries_after_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.index.compact_in_background()
        gallery.add(new_items(unit_rows(DUE_AT_LEAST + 1)))
        with full_disk(10):
            assert len(gallery.search(unit_rows(1), 4)[0]) == 4
            for thread in threading.enumerate():
                if thread.name == "compaction":
                    thread.join()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert len(gallery.search(unit_rows(1), 4)[0]) == 4
        assert gallery.index.stats().frozen == 0, "searches do not try again at once"
        monkeypatch.setattr(
            "serving.gallery.index_files.time", Mock(wraps=time, monotonic=lambda: time.monotonic() + RETRY_SECONDS)
        )
        deadline = time.monotonic() + 20
        while not gallery.index.stats().frozen:  # there is room again
            assert time.monotonic() < deadline
            assert len(gallery.search(unit_rows(1), 4)[0]) == 4
            time.sleep(0.05)


def test_background_compaction_logs_an_unexpected_error_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("too many open files")

    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.index.compact_in_background()
        monkeypatch.setattr("serving.gallery.index_files.compact", fails)
        gallery.add(new_items(unit_rows(DUE_AT_LEAST + 1)))
        for _ in range(5):
            assert len(gallery.search(unit_rows(1), 4)[0]) == 4
            for thread in threading.enumerate():
                if thread.name == "compaction":
                    thread.join()
        (record,) = [record for record in caplog.records if record.name == "serving.gallery.index_files"]
        assert record.message == "too many open files"
        assert record.exc_info


@contextmanager
def reachable_copy(path: Path) -> Iterator[Path]:
    """Copy to a folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(shutil.copytree(path, Path(made) / "g", ignore=shutil.ignore_patterns("*-wal", "*-shm")))


def test_read_only_gallery_is_not_compacted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with reachable_copy(path) as folder:
        with unwritable(folder), VectorGallery.open(folder) as gallery:
            with pytest.raises(GalleryError) as caught:
                gallery.index.compact()
            assert caught.value.code in ("not-writable", "read-only-gallery")
            with raises(GalleryError, "read-only-gallery"):
                gallery.remove([1])
            assert_hits(gallery, by_id(unit_rows(200)))
        assert_whole(folder)
    assert caplog.messages == []


def test_index_equals_the_store_after_many_changes(tmp_path: Path) -> None:
    vectors = unit_rows(2000)
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as writer, VectorGallery.open(tmp_path / "g") as reader:
        writer.add(new_items(vectors[:1000]))
        writer.index.compact()
        reader.search(vectors[:1], 1)
        writer.add(new_items(vectors[1000:], 1000))
        writer.remove(range(1, 2001, 2))
        ids, rows = content(reader)
        assert ids.tolist() == list(range(2, 2001, 2))
        np.testing.assert_array_equal(rows, vectors[1::2])
