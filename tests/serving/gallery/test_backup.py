"""Backups of a gallery that another process writes to, and galleries restored from them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import MANIFEST, backup, restore, verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.store import MODEL
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.gallery.test_gallery import CARD, new_items, unit_rows
from tests.serving.running import ROOT
from zoo.errors import GalleryError, GalleryNotFoundError

# Adds pairs: after each change the number of items is even.
WRITER = """
import sys
from serving.gallery import VectorGallery
from tests.serving.gallery.test_gallery import new_items, unit_rows

with VectorGallery.open(sys.argv[1]) as gallery:
    rows = unit_rows(40_000, seed=5)
    for n in range(0, len(rows), 2):
        gallery.add(new_items(rows[n : n + 2], start=1000 + n))
        if n == 20:
            print("writing", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(200)))
        gallery.index.compact()
        gallery.store.set_fact("calibration", "kept")
    return tmp_path / "g"


def content(path: Path) -> dict[int, tuple[str, str | None, bytes]]:
    with VectorGallery.open(path) as gallery:
        items = gallery.store.items(limit=-1)
        return {one.id: (one.source, one.label, gallery.store.embedding(one.id).tobytes()) for one in items}


def test_what_is_restored_is_what_was_there(path: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with VectorGallery.open(path) as gallery:
        gallery.store.describe(1, "described", {"a": 1})
    copied = backup(path, tmp_path / "copy", lambda done, total: seen.append((done, total)))
    assert sorted(file.name for file in (tmp_path / "copy").iterdir()) == sorted([MANIFEST, STORE, MODEL])
    assert seen[-1][0] == seen[-1][1] > 0
    assert restore(tmp_path / "copy", tmp_path / "again") == copied
    assert content(tmp_path / "again") == content(path)
    assert [check for check in verify_gallery(tmp_path / "again") if check.ok is False] == []
    with VectorGallery.open(tmp_path / "again") as gallery, VectorGallery.open(path) as original:
        assert gallery.store.fact("calibration") == "kept"
        assert (gallery.store.item(1).label, gallery.store.item(1).metadata) == ("described", {"a": 1})
        query = unit_rows(1, seed=99)
        assert gallery.search(query, 5) == original.search(query, 5)
        gallery.add(new_items(unit_rows(3, seed=7), start=500))  # it lives on
        assert gallery.store.count() == 203
    assert content(path).keys() == set(range(1, 201))


@pytest.mark.slow
def test_a_copy_is_of_one_moment_while_another_process_writes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.gallery.backup.PAGES", 5)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert writer.stdout
    try:
        assert writer.stdout.readline() == "writing\n"
        counts = []
        for n in range(4):
            # As slow as a large gallery: the writer gets on between the steps.
            copied = backup(path, tmp_path / f"copy {n}", lambda done, total: time.sleep(0.01))
            restored = restore(tmp_path / f"copy {n}", tmp_path / f"again {n}")
            assert restored == copied
            ids = np.array(sorted(content(tmp_path / f"again {n}")))
            np.testing.assert_array_equal(ids, np.arange(1, copied.items + 1))
            assert copied.items % 2 == 0  # pairs are added in one transaction
            assert copied.items == 200 + 2 * (copied.change - 1)
            counts.append(copied.items)
        assert writer.poll() is None
        assert counts == sorted(set(counts))
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert [check for check in verify_gallery(path) if check.ok is False] == []


def test_what_is_no_whole_copy_is_not_restored(path: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    backup(path, copy)
    damaged = tmp_path / "damaged"
    for name in (STORE, MODEL):
        shutil.copytree(copy, damaged)
        data = bytearray((damaged / name).read_bytes())
        data[len(data) // 2] ^= 1
        (damaged / name).write_bytes(data)
        with raises(GalleryError, "hash-mismatch"):
            restore(damaged, out)
        (damaged / name).unlink()
        with raises(GalleryError, "hash-mismatch"):
            restore(damaged, out)
        shutil.rmtree(damaged)
    for text in ("{", "[]", "{}"):
        (copy / MANIFEST).write_text(text)
        with raises(GalleryError, "gallery-not-found"):
            restore(copy, out)
    with raises(GalleryError, "gallery-not-found", f"zoo gallery backup {path} {path}-backup"):
        restore(path, out)
    with raises(GalleryError, "gallery-not-found", f"zoo gallery backup GALLERY {tmp_path / 'none'}"):
        restore(tmp_path / "none", out)
    assert not out.exists()
    assert sorted(tmp_path.iterdir()) == [copy, path]


def test_nothing_is_overwritten_and_nothing_half_is_left(path: Path, tmp_path: Path) -> None:
    backup(path, tmp_path / "copy")
    for do in (lambda: backup(path, tmp_path / "copy"), lambda: restore(tmp_path / "copy", path)):
        with raises(GalleryError, "already-exists"):
            do()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(path, tmp_path / "broken off", stop)
    with raises(GalleryNotFoundError):
        backup(tmp_path, tmp_path / "none")
    with raises(GalleryError, "not-writable"):
        backup(path, path / STORE / "in a file")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", "g"]


def test_the_commands(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: str, *words: object) -> str:
        run_here(command, *words)
        return capsys.readouterr().out

    assert "200 items, at change 1," in run("gallery backup", path, tmp_path / "copy")
    told = json.loads(run("gallery restore", tmp_path / "copy", tmp_path / "again", "--json"))
    assert (told["items"], told["change"]) == (200, 1)


def test_the_store_and_the_card_alone_are_a_gallery(path: Path, tmp_path: Path) -> None:
    """A folder restored by Litestream: the store names an index that does not exist."""
    (tmp_path / "copy").mkdir()
    with closing(sqlite3.connect(path / STORE)) as db, closing(sqlite3.connect(tmp_path / "copy" / STORE)) as copy:
        db.backup(copy)
    shutil.copyfile(path / MODEL, tmp_path / "copy" / MODEL)
    with VectorGallery.open(tmp_path / "copy") as gallery:
        (hits,) = gallery.search(unit_rows(200)[6:7], 1)
        assert hits[0].id == 7
        gallery.index.compact()
    assert content(tmp_path / "copy") == content(path)
    assert [check.name for check in verify_gallery(tmp_path / "copy") if check.ok is False] == []


def test_a_recall_may_lie_below_the_one_tuned_for_by_the_error_of_a_sample(tmp_path: Path) -> None:
    """The index was tuned by 500 of its vectors, and is verified by others: chance decides about some hundredths."""
    path = tmp_path / "g"
    with VectorGallery.create(path, CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(2500)))
        gallery.store.set_state("plan", json.dumps({"kind": "ivf-rabitq", "recall": 0.8, "k": 5}))
        gallery.index.compact()
        recall = gallery.recall(5)
        assert recall is not None
        assert 0.8 < recall < 0.9
        for asked, is_held in ((recall + 0.03, True), (recall + 0.1, False)):
            gallery.store.set_state("plan", json.dumps({"kind": "ivf-rabitq", "recall": asked, "k": 5}))
            (check,) = (check for check in verify_gallery(path) if check.name == "recall")
            assert check.ok is is_held, check
