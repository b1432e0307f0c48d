"""Second slot of embeddings, and the stored number of items, which must equal the counted one after every change."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gallery import VectorGallery, schema
from serving.gallery.gallery import STORE
from serving.gallery.staging import StagedEmbedding
from serving.gallery.store import Store
from tests.serving.gallery.crash_writer import CARDS, embedded_by
from tests.serving.gallery.test_store import DIM, new_item

NUMBERS = st.lists(st.integers(1, 12), max_size=5)
STEPS = st.tuples(st.sampled_from(["add", "fail", "remove", "replace", "exchange"]), NUMBERS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema.create(tmp_path / STORE, DIM, CARDS[0].fingerprint)
    return tmp_path / STORE


def counted(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM items").fetchone()[0])


def fail(store: Store, numbers: list[int]) -> None:
    """Remove and add items in a transaction that fails."""
    with pytest.raises(ZeroDivisionError), store.database.transaction() as db:
        change = store.change() + 1
        for number in numbers:
            db.execute("DELETE FROM items WHERE id = ?", (number,))
            content = (f"{1000 + number:064x}-{change}", change)
            db.execute("INSERT OR IGNORE INTO contents VALUES (NULL, ?, ?)", content)
            item = ("new", "{}", *content[:1], "now", change)
            sql = "SELECT NULL, ?, NULL, ?, id, ?, ?, NULL, NULL FROM contents WHERE content_sha256 = ?"
            db.execute(f"INSERT INTO items {sql}", (item[0], item[1], item[3], item[4], item[2]))
        raise ZeroDivisionError


def exchange(store: Store, numbers: list[int]) -> None:
    """Swap the slots of embeddings; drop items that the new model has not embedded."""
    other = CARDS[1] if store.fingerprint == CARDS[0].fingerprint else CARDS[0]
    token = store.staging.begin("{}", "{}", other.fingerprint, DIM)
    missing = store.staging.missing()[1]
    dropped = [item_id for item_id in missing if item_id % 13 in numbers]
    rows = [StagedEmbedding(item, embedded_by(other, item).tobytes()) for item in missing if item not in dropped]
    with store.staging.exchange(token) as remove:
        store.staging.put(token, rows)
        remove(dropped)


def apply_step(store: Store, step: str, numbers: list[int]) -> None:
    match step:
        case "add":
            store.add([new_item(number) for number in numbers])
        case "fail":
            fail(store, numbers)
        case "remove":
            store.remove([item.id for item in store.items() if item.id % 13 in numbers])
        case "replace":  # known images are skipped, removed ones get new ids
            store.remove(numbers[:2])
            store.add([new_item(number, label="again") for number in numbers])
        case "exchange":
            exchange(store, numbers)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=8))
def test_stored_count_equals_counted_items(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    path = tmp_path_factory.mktemp("g") / STORE
    schema.create(path, DIM, CARDS[0].fingerprint)
    for step, numbers in steps:
        with closing(Store(path)) as store:
            apply_step(store, step, numbers)
        with closing(Store(path)) as store:  # the model may have changed
            assert store.state("count") is not None
            with store.stream_changes(0) as changes:
                assert store.count() == changes.count == counted(path)
            assert store.problems() == []


def test_second_slot_counts_its_own_items(path: Path) -> None:
    with closing(Store(path)) as store:
        store.add([new_item(number) for number in range(5)])
        token = store.staging.begin("{}", "{}", CARDS[1].fingerprint, DIM)
        number, missing = store.staging.missing()
        store.staging.put(token, [StagedEmbedding(item, embedded_by(CARDS[1], item).tobytes()) for item in missing[:3]])
        store.staging.mark_embedded(token, number)
        with closing(Store(path, other=True)) as other:
            assert (store.count(), other.count()) == (5, 3)


def test_wrong_count_is_reported_and_search_still_works(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "g", CARDS[0], "toy") as gallery:
        gallery.add([new_item(number) for number in range(3)])
    with closing(sqlite3.connect(tmp_path / "g" / STORE, isolation_level=None)) as db:
        db.execute("UPDATE state SET value = 7 WHERE key = 'count'")
    with VectorGallery.open(tmp_path / "g") as gallery:
        hits = gallery.search(new_item(1).embedding[None], 5)[0]
        assert (hits[0].source, len(hits)) == ("1.png", 3)
    with closing(Store(tmp_path / "g" / STORE)) as store:
        (problem,) = store.problems()
        assert problem.startswith("4 items")
