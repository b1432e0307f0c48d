"""Writers killed at any moment, full disks, disks that cannot be written to: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gallery import Gallery
from serving.gallery.gallery import STORE
from serving.gallery.store import Store
from serving.gallery.verification import verify_gallery
from tests.serving.crash_writer import CARDS, embedded_by
from tests.serving.running import ROOT
from tests.serving.test_store import new_item
from zoo.errors import ModelChangedError

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Gallery.create(tmp_path / "g", CARDS[0], "toy") as gallery:
        gallery.add([new_item(number, label="first") for number in range(300)])
    return tmp_path / "g"


@contextmanager
def nursery(path: Path, notes: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.serving.crash_writer", str(path), str(notes)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT
    )
    try:
        yield process
    finally:
        process.communicate(timeout=20)
    assert process.returncode == 0


def kill_one(process: subprocess.Popen[str], notes: Path, seed: int, rng: random.Random) -> None:
    """Start a writer, let it note a few things, and kill it a moment later."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{seed}\n")
    process.stdin.flush()
    pid = int(process.stdout.readline())
    enough = len(notes.read_bytes().splitlines()) + rng.randint(1, 8)
    while len(notes.read_bytes().splitlines()) < enough:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.03))
    os.kill(pid, signal.SIGKILL)
    assert process.stdout.readline() == "gone\n"


class Ledger:
    """What the gallery must hold, from the notes of its writers and what it held before the last one was killed."""

    def __init__(self, path: Path, notes: Path) -> None:
        self.path, self.notes, self.read = path, notes, 0
        self.labels, self.model = labels_in(path), model_in(path)
        self.words: Counter[str] = Counter()

    def settle(self) -> None:
        """Every acknowledged write is there and none but the last, unacknowledged one, is: whole or not at all."""
        entries = [json.loads(line) for line in self.notes.read_text().splitlines()[self.read :]]
        self.read += len(entries)
        self.words.update(entry["word"] for entry in entries)
        for entry in entries:
            if entry["word"] == "added":
                self.labels |= dict.fromkeys(entry["ids"], entry["batch"])
            if entry["word"] == "removed":
                assert entry["count"] == len(entry["ids"])
                self.labels = without(self.labels, entry["ids"])
        labels = labels_in(self.path)
        if labels != self.labels:
            self._check_last(entries[-1], labels)
        self.labels = labels
        self._check_model(entries)

    def _check_last(self, entry: dict[str, Any], labels: dict[int, str | None]) -> None:
        if entry["word"] == "removing":
            assert labels == without(self.labels, entry["ids"])
            return
        assert entry["word"] == "adding", entry
        new = [item_id for item_id, label in labels.items() if label == entry["batch"]]
        assert len(new) == entry["count"], "half a batch"
        assert without(labels, new) == self.labels

    def _check_model(self, entries: list[dict[str, Any]]) -> None:
        """It is that of the last exchange that was acknowledged, or of the one that was under way."""
        done = [entry["to"] for entry in entries if entry["word"] == "rebuilt"]
        possible = {done[-1] if done else self.model}
        if entries and entries[-1]["word"] == "swapping":
            possible.add(entries[-1]["to"])
        self.model = model_in(self.path)
        assert self.model in possible


def model_in(path: Path) -> str:
    with Gallery.open(path) as gallery:
        return gallery.card.name


def labels_in(path: Path) -> dict[int, str | None]:
    with Store(path / STORE).closing() as store:
        return store.labels()


def without(labels: dict[int, str | None], ids: list[int]) -> dict[int, str | None]:
    return {item_id: label for item_id, label in labels.items() if item_id not in set(ids)}


def check_content(path: Path) -> None:
    """Vectors are by the gallery's model, and they and the pictures of the items' numbers."""
    with Gallery.open(path) as gallery, Store(path / STORE).closing() as store:
        for item, embedding, thumbnail in store.rows():
            number = int(item.source.removesuffix(".png"))
            np.testing.assert_array_equal(embedding, embedded_by(gallery.card, number))
            assert thumbnail == new_item(number).thumbnail


def still_right(reader: Gallery, ledger: Ledger) -> Gallery:
    """A reader that stayed open sees what is there, or says that it is of the model before and is opened again."""
    try:
        ids, _ = reader.vectors()
    except ModelChangedError:
        reader.close()
        reader = Gallery.open(ledger.path)
        ids, _ = reader.vectors()
    assert reader.card.name == ledger.model
    assert ids.tolist() == list(ledger.labels)
    return reader


def kill_and_check(path: Path, tmp_path: Path, kills: int, plan: dict[str, Any]) -> Ledger:
    (tmp_path / "notes").touch()
    ledger, rng = Ledger(path, tmp_path / "notes"), random.Random(0)
    with Store(path / STORE).closing() as store:
        store.set_state("plan", json.dumps(plan))
    reader = Gallery.open(path)
    with nursery(path, tmp_path / "notes") as process:
        for seed in range(1, kills + 1):
            kill_one(process, ledger.notes, seed, rng)
            ledger.settle()
            assert [check for check in verify_gallery(path) if check.ok is False] == []
            reader = still_right(reader, ledger)
    reader.close()
    check_content(path)
    return ledger


def test_nothing_acknowledged_is_lost_when_writers_are_killed(path: Path, tmp_path: Path) -> None:
    ledger = kill_and_check(path, tmp_path, 15, {"kind": "flat", "recall": 1.0, "k": 10})
    assert min(ledger.words[word] for word in ("added", "removed", "compacted", "rebuilding")) >= 1
    assert len(list(path.glob("index-*"))) <= 3, "what killed writers leave does not pile up"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_nothing_acknowledged_is_lost_in_200_kills(path: Path, tmp_path: Path, kind: str) -> None:
    ledger = kill_and_check(path, tmp_path, 200, {"kind": kind, "recall": 0.9, "k": 5})
    assert min(ledger.words[word] for word in ("added", "removed", "compacted", "rebuilding", "rebuilt")) >= 10
