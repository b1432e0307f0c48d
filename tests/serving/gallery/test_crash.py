"""Two writers are killed at any moment: no acknowledged write is lost, and searches find all items.

Full disks are in test_index_files.py, read-only folders in test_database.py.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.index import KINDS
from serving.gallery.index_files import TuningPlan
from serving.gallery.store import Store
from tests.serving.gallery.crash_writer import CARDS, SAID, embedded_by
from tests.serving.gallery.test_store import new_item
from tests.serving.running import ROOT
from tests.serving.toys import content
from zoo.errors import ModelChangedError

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SAMPLING = 0.05
"""How far recall by 300 queries may lie below that by the 500 of the tuning: six standard deviations."""
POLLS = 20_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARDS[0], "toy") as gallery:
        gallery.add([new_item(number, label="first") for number in range(300)])
    return tmp_path / "g"


@contextmanager
def writers(path: Path, notes: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.serving.gallery.crash_writer", str(path), str(notes)]
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # its writers, too
        raise
    finally:
        process.communicate(timeout=20)
    assert process.returncode == 0


def kill_two(process: subprocess.Popen[str], notes: Path, seed: int, rng: random.Random) -> None:
    """Start two writers, let them write some notes, and kill one after the other."""
    assert process.stdin
    assert process.stdout
    enough = len(notes.read_bytes().splitlines()) + rng.randint(2, 30)
    process.stdin.write(f"{2 * seed} {2 * seed + 1}\n")
    process.stdin.flush()
    pids = [int(word) for word in process.stdout.readline().split()]
    for _ in range(POLLS):  # not a deadline, because a debugger may stop all processes for a while
        if len(notes.read_bytes().splitlines()) >= enough:
            break
        time.sleep(0.002)
    else:
        pytest.fail("the writers wrote nothing")
    for pid in rng.sample(pids, 2):
        time.sleep(rng.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
    assert process.stdout.readline().split() == 2 * [str(-signal.SIGKILL)], "a writer ended by itself"


class Ledger:
    """Expected content of the gallery, from its earlier content and the notes of its writers."""

    def __init__(self, path: Path, notes: Path) -> None:
        self.path, self.notes, self.read = path, notes, 0
        self.labels, self.model, self.said, self.keyed = labels_in(path), model_in(path), said_in(path), keyed_in(path)
        self.words: Counter[str] = Counter()

    def settle(self) -> None:
        """Check that the gallery has every acknowledged write and, whole or not at all, the last one of each writer."""
        entries = [json.loads(line) for line in self.notes.read_text().splitlines()[self.read :]]
        self.read += len(entries)
        self.words.update(entry["word"] for entry in entries)
        self.words["replaced"] += sum(entry.get("replaced", 0) for entry in entries)
        by_writer: dict[int, list[dict[str, Any]]] = {}
        for entry in entries:
            by_writer.setdefault(entry["writer"], []).append(entry)
        last = [some[-1] for some in by_writer.values()]
        labels = labels_in(self.path)
        self._check_items(entries, [entry for entry in last if entry["word"] in ("adding", "removing")], labels)
        self.labels = labels
        self._check_keyed(by_writer)
        self._check_said(by_writer.values())
        self._check_model(by_writer.values(), last)

    def _check_items(
        self, entries: list[dict[str, Any]], unsettled: list[dict[str, Any]], labels: dict[int, str | None]
    ) -> None:
        labels, known, gone, counted = without_keyed(labels), without_keyed(self.labels), set[int](), 0
        for entry in entries:
            if entry["word"] == "added":
                known |= dict.fromkeys(entry["ids"], entry["batch"])
            if entry["word"] == "removed":
                gone.update(entry["ids"])
                counted += entry["count"]
        # Both may have removed one item; only one of them did, and it may have been killed before the acknowledgement.
        doubtful = {item_id for entry in unsettled if entry["word"] == "removing" for item_id in entry["ids"]}
        assert len(gone - doubtful) <= counted <= len(gone)
        subsets = [some for n in range(len(unsettled) + 1) for some in itertools.combinations(unsettled, n)]
        assert any(fits(labels, known, gone, some) for some in subsets), "a write is lost, or half done"

    def _check_keyed(self, by_writer: dict[int, list[dict[str, Any]]]) -> None:
        """Check that each key has the last acknowledged image, or all keys those of the write that was being made."""
        before, self.keyed = self.keyed, keyed_in(self.path)
        for own in ("0/", "1/"):
            expected = {key: image for key, image in before.items() if key.startswith(own)}
            possible = [expected]
            for entries in (some for seed, some in by_writer.items() if f"{seed % 2}/" == own):
                for entry in entries:
                    expected |= entry["images"] if entry["word"] == "put" else {}
                if entries[-1]["word"] == "putting":
                    possible.append(expected | entries[-1]["images"])
            present = {key: image for key, image in self.keyed.items() if key.startswith(own)}
            assert present in possible, "a replacement is lost, or half done"

    def _check_said(self, writers: Iterable[list[dict[str, Any]]]) -> None:
        """Check that each item has the last acknowledged text of a writer, or one that was being written."""
        acknowledged, under_way = dict[int, set[str | None]](), dict[int, set[str | None]]()
        for some in writers:
            said = {entry["item"]: entry["text"] for entry in some if entry["word"] == "said"}
            for key, text in said.items():
                acknowledged.setdefault(key, set()).add(text)
            if some[-1]["word"] == "saying":
                under_way.setdefault(some[-1]["item"], set()).add(some[-1]["text"])
        before, self.said = self.said, said_in(self.path)
        for item in self.labels:
            possible = acknowledged.get(item) or {before.get(item)}
            assert self.said.get(item) in possible | under_way.get(item, set())
        assert set(self.said) <= set(self.labels)

    def _check_model(self, writers: Iterable[list[dict[str, Any]]], last: list[dict[str, Any]]) -> None:
        """Check that the model is of the last acknowledged swap of a writer, or of one that was being made."""
        done = [[entry["to"] for entry in some if entry["word"] == "rebuilt"][-1:] for some in writers]
        possible = set(itertools.chain(*done)) or {self.model}
        possible |= {entry["to"] for entry in last if entry["word"] == "swapping"}
        self.model = model_in(self.path)
        assert self.model in possible


def fits(
    labels: dict[int, str | None],
    known: dict[int, str | None],
    gone: set[int],
    unsettled: Sequence[dict[str, Any]],
) -> bool:
    """Return whether `labels` are the items after these unacknowledged writes, each as a whole.

    known: earlier and acknowledged items. gone: acknowledged removals. A writer may have removed items of the other
    one's last batch, whose ids are only in the note of the removal.
    """
    added = {entry["batch"]: entry["count"] for entry in unsettled if entry["word"] == "adding"}
    gone = gone.union(*(entry["ids"] for entry in unsettled if entry["word"] == "removing"))
    new = {item_id: label for item_id, label in labels.items() if item_id not in known}
    return (
        {item_id: label for item_id, label in known.items() if item_id not in gone}
        == {item_id: label for item_id, label in labels.items() if item_id in known}
        and set(new.values()) <= set(added)
        and not gone & set(new)
        and len(new) + len(gone - set(known)) == sum(added.values())
    )


def model_in(path: Path) -> str:
    with VectorGallery.open(path) as gallery:
        return gallery.card.name


def labels_in(path: Path) -> dict[int, str | None]:
    with closing(Store(path / STORE)) as store:
        return store.labels()


def keyed_in(path: Path) -> dict[str, int]:
    """Return the number of the image of each key."""
    with closing(Store(path / STORE)) as store:
        items = store.items(limit=store.count())
    return {item.key: int(item.source.removesuffix(".png")) for item in items if item.key is not None}


def without_keyed(labels: dict[int, str | None]) -> dict[int, str | None]:
    """Return the labels of items without a key: the label of the others is their key, as in 0/3."""
    return {item_id: label for item_id, label in labels.items() if "/" not in str(label)}


def said_in(path: Path) -> dict[int, str]:
    """Return the texts in the metadata of items, by their ids."""
    with VectorGallery.open(path) as gallery:
        items = gallery.store.items(limit=gallery.store.count())
        return {one.id: str(one.metadata[SAID]) for one in items if SAID in one.metadata}


def check_content(path: Path) -> None:
    """Check that embeddings and thumbnails are those of the items, by the gallery's model."""
    with VectorGallery.open(path) as gallery, closing(Store(path / STORE)) as store:
        for item, embedding, thumbnail in store.rows():
            number = int(item.source.removesuffix(".png"))
            np.testing.assert_array_equal(embedding, embedded_by(gallery.card, number))
            assert thumbnail == new_item(number).thumbnail


def still_right(reader: VectorGallery, ledger: Ledger) -> VectorGallery:
    """Check that an open reader sees all items, or raises `ModelChangedError`; open it again then."""
    try:
        ids, _ = content(reader)
    except ModelChangedError:
        reader.close()
        reader = VectorGallery.open(ledger.path)
        ids, _ = content(reader)
    assert reader.card.name == ledger.model
    assert ids.tolist() == list(reader.store.content_labels())
    assert list(reader.store.labels()) == list(ledger.labels)
    return reader


def check_searches(gallery: VectorGallery, plan: TuningPlan, rng: np.random.Generator) -> float:
    """Check that similarities are those of the store's vectors and that the recall is the plan's.

    Return the recall of the k nearest, of up to 300 items as queries.
    """
    with closing(Store(Path(gallery.address) / STORE)) as store:
        ids = np.array(list(store.content_labels()))
        _, truth = store.content_embeddings(ids.tolist())
    queries = np.concatenate([truth[rng.permutation(len(truth))[:300]], rng.normal(size=(20, truth.shape[1]))])
    queries = np.asarray(queries / np.linalg.norm(queries, axis=1, keepdims=True), np.float32)
    similarities, found = gallery.neighbours(queries, plan.k)
    products = queries.astype(np.float64) @ truth.T.astype(np.float64)
    assert found.shape == (len(queries), plan.k)
    assert np.isin(found, ids).all()
    assert all(len(set(row)) == plan.k for row in found.tolist())
    rows = np.searchsorted(ids, found)
    np.testing.assert_allclose(similarities, np.take_along_axis(products, rows, axis=1), rtol=0, atol=1e-5)
    kth = np.sort(products, axis=1)[:, -plan.k :][:, :1]
    recall = float((similarities[:-20] >= kth[:-20] - 1e-5).mean())
    assert recall >= (plan.recall if plan.kind == "flat" else plan.recall - SAMPLING)
    return recall


def kill_and_check(path: Path, tmp_path: Path, rounds: int, plan: TuningPlan) -> tuple[Ledger, float]:
    """Kill and check in rounds; return the ledger and the lowest recall."""
    (tmp_path / "notes").touch()
    ledger, rng, recalls = Ledger(path, tmp_path / "notes"), random.Random(0), []
    with closing(Store(path / STORE)) as store:
        store.set_state("plan", json.dumps(asdict(plan)))
    reader = VectorGallery.open(path)
    with writers(path, tmp_path / "notes") as process:
        for seed in range(1, rounds + 1):
            kill_two(process, ledger.notes, seed, rng)
            ledger.settle()
            assert [check for check in verify_gallery(path) if check.ok is False] == []
            reader = still_right(reader, ledger)
            with VectorGallery.open(path) as opened:
                recalls += [check_searches(one, plan, np.random.default_rng(seed)) for one in (reader, opened)]
    reader.close()
    check_content(path)
    with VectorGallery.open(path) as gallery:
        gallery.index.compact()
        assert gallery.index.stats().kind == plan.kind
    assert len(list(path.glob("*index-*"))) <= 2, "each model has at most one, and killed writers leave none"
    return ledger, min(recalls)


def add_enough(path: Path, kind: str) -> None:
    """Add as many items as a kind of index is built for, and as writers may remove."""
    with VectorGallery.open(path) as gallery:
        gallery.add([new_item(number, label="first") for number in range(300, 300 + KINDS[kind].least)])


@pytest.mark.parametrize("kind", ["hnsw", "ivf-rabitq"])
def test_killed_writers_lose_no_acknowledged_write(path: Path, tmp_path: Path, kind: str) -> None:
    add_enough(path, kind)
    ledger, _ = kill_and_check(path, tmp_path, 6, TuningPlan(kind, 0.9, 5))
    assert min(ledger.words[word] for word in ("added", "removed", "rebuilding", "said", "put")) >= 1


@pytest.mark.parametrize(
    ("there", "gone", "unsettled", "right"),
    [
        ({1: "a", 2: "a"}, set(), [], True),
        ({1: "a"}, set(), [], False),  # an acknowledged item is lost
        ({1: "a", 2: "a"}, {2}, [], False),  # an acknowledged removal is
        ({1: "a", 2: "a", 3: "b"}, set(), [], False),  # something came of nothing
        ({1: "a", 2: "a", 3: "b", 4: "b"}, set(), [{"word": "adding", "batch": "b", "count": 2}], True),
        ({1: "a", 2: "a", 3: "b"}, set(), [{"word": "adding", "batch": "b", "count": 2}], False),  # half of a batch
        # The other writer has removed the rest of it.
        ({1: "a", 2: "a", 3: "b"}, {4}, [{"word": "adding", "batch": "b", "count": 2}], True),
        ({}, set(), [{"word": "removing", "ids": [1, 2]}], True),
        ({1: "a"}, set(), [{"word": "removing", "ids": [1, 2]}], False),  # half of a removal
        ({1: "b"}, {2}, [], False),  # another label
    ],
)
def test_ledger_accepts_whole_writes_only(there: dict, gone: set[int], unsettled: list, right: bool) -> None:
    assert fits(there, {1: "a", 2: "a"}, gone, unsettled) is right


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf-rabitq"])
def test_killed_writers_lose_no_acknowledged_write_in_200_rounds(
    path: Path, tmp_path: Path, kind: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    add_enough(path, kind)
    ledger, recall = kill_and_check(path, tmp_path, 200, TuningPlan(kind, 1.0 if kind == "flat" else 0.9, 5))
    words = ("added", "removed", "compacted", "rebuilding", "rebuilt", "said", "put")
    assert min(ledger.words[word] for word in (*words, "replaced")) >= 10
    record_testsuite_property(f"{kind} kills", 2 * 200)
    record_testsuite_property(f"{kind} writes acknowledged", sum(ledger.words[word] for word in words))
    record_testsuite_property(f"{kind} items replaced", ledger.words["replaced"])
    record_testsuite_property(f"{kind} lowest recall", round(recall, 4))
