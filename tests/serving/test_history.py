"""What a store hands out of its changes, row by row, and what another store makes of them."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.backup import backup, restore
from serving.following.wire import Head, read_head, read_rows, written
from serving.gallery import Gallery, NewItem, Thumbnail, schema
from serving.gallery.compaction import tune
from serving.gallery.database import Database
from serving.gallery.history import FOLLOWING, Facts, ItemRow, MarkRow, Part, Position, StateRow
from serving.gallery.items import Place
from serving.gallery.marks import SentQuery
from serving.gallery.replica import Replica
from serving.gallery.schema import SCHEMA
from serving.gallery.store import Store
from tests.serving.older import as_schema_6
from zoo.data.preprocessing import Preprocessing
from zoo.errors import FollowingError, GalleryError, UsageError
from zoo.models.card import Card

DIM = 4
CARD = Card("toy", "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": "0" * 64})
TABLES = ("items", "thumbnails", "embeddings", "keys", "removals", "marks")
OWN = ("history", "generation", "model", FOLLOWING)
"""State that each store has for itself."""


def unit(seed: int) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=DIM)
    return (row / np.linalg.norm(row)).astype(np.float32)


def new_item(seed: int, key: str | None = None) -> NewItem:
    picture = Thumbnail(bytes([seed % 256]) * 9, "image/png")
    return NewItem(f"{seed}.png", unit(seed), picture, f"{seed:064x}", f"l{seed % 3}", {"n": seed}, key=key)


def make(path: Path) -> Store:
    schema.create(path, DIM, CARD.fingerprint)
    return Store(path)


def content(path: Path) -> dict[str, Any]:
    """All that counts of a store, table by table."""
    with closing(sqlite3.connect(path)) as db:
        found = {table: db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}
        state = dict(db.execute("SELECT key, value FROM state").fetchall())
    return {**found, "state": {key: value for key, value in state.items() if key not in OWN}}


def sent(store: Store, after: int, rows: int, size: int = 10**9) -> tuple[Head, list[bytes]]:
    head, *lines = written(store.history.since(after, rows, size)).splitlines(keepends=True)
    return read_head(head), lines


def follow(store: Store, replica: Replica, rows: int = 1000, size: int = 10**9) -> None:
    """Over the wire, as a follower does, in slices."""
    known = replica.position()
    after, lines = known.number if known else 0, []
    while True:
        head, more = sent(store, after, rows, size)
        lines, after = lines + more, head.number
        if head.number == head.last:
            break
    read = Position(head.history, head.number)
    replica.take(read_rows(lines, head), read, head.facts, None if known else "{}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make(tmp_path / "a.sqlite").closing() as made:
        yield made


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    schema.create(tmp_path / "b.sqlite", DIM, CARD.fingerprint)
    made = Replica(tmp_path / "b.sqlite")
    yield made
    made.close()


NUMBERS = st.integers(1, 9)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(NUMBERS, min_size=1, max_size=4, unique=True), st.booleans()),
    st.tuples(st.just("remove"), st.lists(NUMBERS, max_size=3), st.none()),
    st.tuples(st.just("label"), NUMBERS, st.sampled_from(["x", None])),
    st.tuples(st.just("move"), NUMBERS, st.sampled_from(["y.png", "z.png"])),
    st.tuples(st.just("mark"), NUMBERS, NUMBERS),
    st.tuples(st.just("send"), NUMBERS, NUMBERS),
    st.tuples(st.just("unmark"), NUMBERS, st.none()),
    st.tuples(st.just("fact"), st.sampled_from(["evaluation", "other"]), NUMBERS),
    st.tuples(st.just("plan"), NUMBERS, st.none()),
    st.tuples(st.just("follow"), st.integers(1, 5), st.integers(1, 2000)),
)


def done(store: Store, what: str, one: Any, other: Any) -> None:
    there = [item.id for item in store.items(limit=1000)]
    if what == "add":
        store.add([new_item(n, f"key {n}" if other else None) for n in one])
    elif what == "remove":
        store.remove(one)
    elif what == "label" and one in there:
        store.describe(one, other, {"new": other})
    elif what == "move":
        store.move([Place(one, other, "moved")])
    elif what == "mark" and {one, other} <= set(there) and one != other:
        store.marks.put(one, other, bool(one % 2))
    elif what == "send" and other in there:
        store.marks.put(SentQuery(f"{1000 + one:064x}", unit(one), "sent"), other, True)
    elif what == "unmark":
        store.marks.remove(one)
    elif what == "fact":
        store.set_fact(one, json.dumps({"is": other}))
    elif what == "plan":
        store.set_state("plan", json.dumps({"kind": "flat", "recall": 0.9, "k": one}))


@settings(max_examples=15)
@given(st.lists(OPERATIONS, max_size=20))
def test_whatever_is_done_to_a_store_a_follower_becomes_equal_in_any_slices(operations: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema.create(Path(folder) / "b", DIM, CARD.fingerprint)
        replica = Replica(Path(folder) / "b")
        with make(Path(folder) / "a").closing() as store:
            for what, one, other in [*operations, ("follow", 3, 500)]:
                if what != "follow":
                    _passing_conflicts(store, what, one, other)
                    continue
                follow(store, replica, one, other)
                assert content(store.path) == content(replica.path)
            with Store(replica.path).closing() as followed:
                assert followed.problems() == []
        replica.close()


def _passing_conflicts(store: Store, what: str, one: Any, other: Any) -> None:
    try:
        done(store, what, one, other)
    except GalleryError:  # a key that is taken
        assert what == "add"


def test_nothing_is_handed_out_twice_and_the_end_is_known(store: Store) -> None:
    store.add([new_item(n) for n in range(7)])
    head, lines = sent(store, 0, 4)
    assert (head.number, head.last, len(lines), head.items) == (4, 7, 4, 7)
    head, lines = sent(store, 4, 4)
    assert (head.number, head.last, len(lines)) == (7, 7, 3)
    assert sent(store, 7, 4)[1] == []
    assert len(sent(store, 0, 100, size=1)[1]) == 1, "at least one row, however large"
    store.describe(2, "again")
    head, lines = sent(store, 7, 4)
    assert (head.number, head.last, [row.id for row in read_rows(lines, head)]) == (8, 8, [2])


def test_rows_of_another_history_are_not_handed_out(store: Store) -> None:
    store.add([new_item(1)])
    own = store.history.since(0, 10, 10**6)
    assert store.history.since(0, 10, 10**6, own.facts.history).rows == own.rows
    assert store.history.since(0, 10, 10**6, "0" * 16).rows == []
    assert store.history.since(99, 10, 10**6).rows == []


def test_a_restored_copy_has_another_history_each_time(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add([new_item(1)])
    backup(tmp_path / "g", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "new")
    restore(tmp_path / "copy", tmp_path / "again")
    names = set()
    for folder in ("g", "new", "again"):
        with Store(tmp_path / folder / "gallery.sqlite").closing() as store:
            names.add(store.history.since(0, 1, 1).facts.history)
    assert len(names) == 3


def test_a_store_of_before_there_was_a_journal(tmp_path: Path) -> None:
    with make(tmp_path / "a").closing() as store:
        store.add([new_item(n) for n in range(4)])
        store.remove([2])
        store.marks.put(1, 3, True)
        store.set_fact("evaluation", "{}")
    as_schema_6(tmp_path / "a")
    with Store(tmp_path / "a").closing() as store:
        assert store.problems() == []
        schema.create(tmp_path / "b", DIM, CARD.fingerprint)
        replica = Replica(tmp_path / "b")
        follow(store, replica, rows=2)
        store.add([new_item(9)])
        follow(store, replica)
        replica.close()
        assert content(tmp_path / "a") == content(tmp_path / "b")
    with closing(sqlite3.connect(tmp_path / "a")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_what_was_found_out_with_a_model_comes_back_with_it(tmp_path: Path) -> None:
    with make(tmp_path / "a").closing() as store:
        store.set_fact("evaluation", "{}")
        with store.shadow.exchanging(store.shadow.begin("{}", "{}", "1" * 64, DIM)):
            pass
    as_schema_6(tmp_path / "a")  # so that the journal begins while that model is not the present one
    with Store(tmp_path / "a").closing() as store:
        assert store.history.since(0, 10, 10**6).rows == []
        with store.shadow.exchanging(store.shadow.begin("{}", "{}", CARD.fingerprint, DIM)):
            pass
    with Store(tmp_path / "a").closing() as store:
        assert store.fact("evaluation") == "{}"
        assert store.history.since(0, 10, 10**6).rows == [StateRow("fact evaluation", "{}")]


def test_a_store_that_follows_is_not_written_to(store: Store, replica: Replica) -> None:
    store.add([new_item(1), new_item(2)])
    follow(store, replica)
    with Store(replica.path).closing() as followed:
        for write in (
            lambda: followed.add([new_item(3)]),
            lambda: followed.remove([1]),
            lambda: followed.marks.put(1, 2, True),
            lambda: followed.set_fact("calibration", "{}"),
            lambda: followed.set_state("folders", "[]"),
            lambda: tune(replica.path.parent, followed, 0.9, 1, []),
            lambda: followed.shadow.begin("{}", "{}", "1" * 64, DIM),
        ):
            with pytest.raises(UsageError, match="follows another"):
                write()
        followed.set_generation("index-of-its-own")
    assert content(store.path) == content(replica.path)


def test_an_id_that_was_used_there_is_given_to_nothing_here(store: Store, replica: Replica) -> None:
    store.remove(store.add([new_item(1), new_item(2)]).ids)
    follow(store, replica)
    with closing(sqlite3.connect(replica.path)) as db, db:
        db.execute("DELETE FROM state WHERE key = ?", (FOLLOWING,))  # as a restored copy of it
    with Store(replica.path).closing() as own:
        assert own.add([new_item(3)]).ids == [3]
        assert own.problems() == []
        assert own.remove([3]) == 1


def test_what_does_not_go_together_leaves_nothing_behind(store: Store, replica: Replica) -> None:
    store.add([new_item(1), new_item(2)])
    part = store.history.since(0, 10, 10**6)
    read, before = Position(part.facts.history, part.number), content(replica.path)
    twice = [part.rows[0], replace(part.rows[0], id=5)]
    for rows, facts in (
        (part.rows[:1], part.facts),
        (twice, part.facts),
        (part.rows, replace(part.facts, fingerprint="1" * 64)),
    ):
        with pytest.raises(FollowingError):
            replica.take(rows, read, facts)
        assert content(replica.path) == before
        assert replica.position() is None
    replica.take(part.rows, read, part.facts)
    assert replica.position() == read


def test_to_begin_anew_is_to_forget_all_that_was(store: Store, replica: Replica, tmp_path: Path) -> None:
    store.add([new_item(n) for n in range(5)])
    store.marks.put(1, 2, True)
    follow(store, replica)
    with make(tmp_path / "c").closing() as other:
        other.add([new_item(7), new_item(3)])
        part = other.history.since(0, 10, 10**6)
        before = Database(replica.path).query("SELECT value FROM state WHERE key IN ('generation', 'history')")
        replica.take(part.rows, Position(part.facts.history, part.number), part.facts, "{}")
        assert content(other.path) == content(replica.path)
        after = Database(replica.path).query("SELECT value FROM state WHERE key IN ('generation', 'history')")
        assert not set(before) & set(after), "an index of what was is none of what is, nor is what others read of it"


ITEM = ItemRow(1, "a", None, "{}", "0" * 64, "2026", 1, None, "image/png", b"p", unit(1).tobytes(), 0)
MARK = MarkRow(1, 1, "0" * 64, "a", 1, 0.5, "m", "2026")
WRONG = {
    "another dim": replace(ITEM, embedding=b"\0" * 20),
    "NaN": replace(ITEM, embedding=np.full(DIM, np.nan, "<f4").tobytes()),
    "infinite": replace(ITEM, embedding=np.full(DIM, np.inf, "<f4").tobytes()),
    "no unit length": replace(ITEM, embedding=np.ones(DIM, "<f4").tobytes()),
    "no id": replace(ITEM, id=0),
    "an id beyond": replace(ITEM, id=2**63),
    "no whole number": replace(ITEM, id=1.5),
    "no truth": replace(ITEM, id=True),
    "no hash": replace(ITEM, content_sha256="0" * 63),
    "a change of the future": replace(ITEM, change=2),
    "no picture": replace(ITEM, media_type="text/html"),
    "no text": replace(ITEM, source=None),
    "half a character": replace(ITEM, label="\ud800"),
    "a long label": replace(ITEM, label="x" * 10**5),
    "no metadata": replace(ITEM, metadata="[]"),
    "damaged metadata": replace(ITEM, metadata="{"),
    "deep metadata": replace(ITEM, metadata='{"a":' + "[" * 10**5),
    "a mark of nothing": replace(MARK, item=0),
    "no verdict": replace(MARK, same=2),
    "no similarity": replace(MARK, similarity=float("nan")),
    "far similarity": replace(MARK, similarity=7.0),
    "state of one place": StateRow("generation", "index-1"),
    "state that is none": StateRow("fact evaluation", "{"),
    "no plan": StateRow("plan", '{"kind": "magic", "recall": 1, "k": 1}'),
    "no calibration": StateRow("fact calibration", '{"a": 1}'),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_are_none(name: str) -> None:
    facts = Facts("0" * 16, "f" * 64, DIM, 1, 1)
    text = written(Part(facts, 1, 1, [ITEM, MARK, WRONG[name]])) if name != "half a character" else None
    if text is None:
        good = written(Part(facts, 1, 1, [ITEM, MARK, ITEM]))
        text = b'"label":"\\ud800"'.join(good.rsplit(b'"label":null', 1))
    head, *lines = text.splitlines(keepends=True)
    rows = read_rows(lines, read_head(head))
    assert [next(rows), next(rows)] == [ITEM, MARK]
    with pytest.raises(FollowingError):
        next(rows)


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 0}, {"dim": 10**9}, {"items": -1}, {"number": 1.5}, {"history": "a/b"}, {"fingerprint": 3},
        {"model": 3}, {"backend": "milvus://h/c"}, {"more": 1}, {"last": None},
    ],
)  # fmt: skip
def test_first_lines_that_are_none(change: dict[str, Any]) -> None:
    good = json.loads(written(Part(Facts("0" * 16, "f" * 64, DIM, 1, 1), 1, 1, [])))
    assert read_head(json.dumps(good).encode() + b"\n").dim == DIM
    for line in (json.dumps({**good, **change}).encode() + b"\n", json.dumps(good).encode(), b"[]\n", b"\xff\n"):
        with pytest.raises(FollowingError):
            read_head(line)


def test_lines_that_are_cut_or_of_another_kind() -> None:
    facts = Facts("0" * 16, "f" * 64, DIM, 1, 1)
    head, line = written(Part(facts, 1, 1, [ITEM])).splitlines(keepends=True)
    for wrong in (
        line[:-1],
        line[: len(line) // 2],
        b"{}\n",
        b'{"kind":["item"]}\n',
        line.replace(b'"item"', b'"mark"'),
    ):
        with pytest.raises(FollowingError):
            list(read_rows([wrong], read_head(head)))
