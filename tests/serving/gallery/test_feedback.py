"""Marks of pairs in a store, compared with a plain dictionary."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gallery import schema
from serving.gallery.feedback import MarkFilter, QueryImage
from serving.gallery.store import Store
from serving.gallery.types import MarkCounts
from tests.raising import raises
from tests.serving.gallery.test_store import DIM, new_item
from zoo.errors import ItemNotFoundError, UsageError

ITEMS = 5
SENT = [new_item(100 + i) for i in range(3)]


def sent(number: int) -> QueryImage:
    """Return the image of an item, or from 100 on another image."""
    item = new_item(number)
    return QueryImage(item.content_sha256, item.embedding, f"sent {number}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Store of items 1 to 5, labelled by their number modulo 3."""
    path = tmp_path / "gallery.sqlite"
    schema.create(path, DIM, "fingerprint")
    with closing(Store(path)) as store:
        store.add([new_item(n) for n in range(1, ITEMS + 1)])
    return path


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("item"), st.integers(1, ITEMS), st.integers(1, ITEMS), st.booleans()),
        st.tuples(st.just("sent"), st.sampled_from([1, 2, 100, 101]), st.integers(1, ITEMS), st.booleans()),
        st.tuples(st.just("undo"), st.integers(0, 8)),
        st.tuples(st.just("delete"), st.integers(1, ITEMS)),
    ),
    max_size=25,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_marks_equal_a_dictionary(tmp_path_factory: Any, operations: list[tuple[Any, ...]]) -> None:
    path = tmp_path_factory.mktemp("marks") / "gallery.sqlite"
    schema.create(path, DIM, "fingerprint")
    with closing(Store(path)) as store:
        store.add([new_item(n) for n in range(1, ITEMS + 1)])
        change = store.change()
        there = set(range(1, ITEMS + 1))
        expected: dict[tuple[int, int], bool] = {}
        for word, *given_values in operations:
            if word in ("item", "sent"):
                query, item, same = given_values
                impossible = query == item or item not in there or (word == "item" and query not in there)
                try:
                    mark, new = store.marks.put(query if word == "item" else sent(query), item, same)
                except (ItemNotFoundError, UsageError):
                    assert impossible
                    continue
                assert not impossible
                assert new == ((query, item) not in expected)
                expected[query, item] = same
                cosine = new_item(query).embedding.astype(float) @ new_item(item).embedding.astype(float)
                assert (mark.same, mark.item) == (same, item)
                assert mark.similarity == pytest.approx(cosine, abs=1e-6)
            elif word == "undo":
                number = given_values[0]
                marks = store.marks.page(limit=100)
                if number < len(marks):
                    gone = marks[number]
                    assert store.marks.remove(gone.id)
                    assert not store.marks.remove(gone.id)
                    del expected[int(gone.query, 16), gone.item]
            elif given_values[0] in there:
                there.remove(given_values[0])
                store.remove(given_values)
                change += 1
                expected = {pair: same for pair, same in expected.items() if given_values[0] not in pair}
        with closing(Store(path)) as again:
            marks = list(again.marks.all())
            assert {(int(mark.query, 16), mark.item): mark.same for mark in marks} == expected
            assert again.marks.page(limit=100) == marks
            right = sum(expected.values())
            assert again.marks.counts() == MarkCounts(right, len(expected) - right)
            wrong = {
                mark.id for mark in marks if mark.query_item and (int(mark.query, 16) % 3 == mark.item % 3) != mark.same
            }
            assert again.marks.contradictions() == (len(wrong), [mark for mark in marks if mark.id in wrong])
            assert again.problems() == []
            assert again.change() == change, "marks do not change the index"


def test_pages_and_filters(path: Path) -> None:
    with closing(Store(path)) as store:
        for query, item, same in ((1, 2, True), (1, 3, False), (2, 3, True), (4, 1, False)):
            store.marks.put(query, item, same)
        store.marks.put(sent(100), 3, False)
        marks = store.marks.page()
        assert store.marks.page(1, 2) == marks[1:3]
        assert store.marks.page(selection=MarkFilter(query=store.item(1).content_sha256)) == marks[:2]
        assert store.marks.page(selection=MarkFilter(item=3, same=False)) == [marks[1], marks[4]]
        assert store.marks.counts(MarkFilter(item=3)) == MarkCounts(1, 2)
        assert (marks[4].query_item, marks[4].query_label, marks[4].query_source) == (None, None, "sent 100")
        assert (marks[1].query_item, marks[1].query_label, marks[1].query_source) == (1, "label 1", "1.png")
        store.add([new_item(100)])  # what was sent before is an item now
        assert store.marks.page()[4].query_item == 6
        for impossible in (0, -1, 99, 2**63, 10**30):
            with pytest.raises(ItemNotFoundError):
                store.marks.put(1, impossible, True)
            with pytest.raises(ItemNotFoundError):
                store.marks.put(impossible, 1, True)
            assert not store.marks.remove(impossible)


def test_invalid_query_embedding_is_refused(path: Path) -> None:
    with closing(Store(path)) as store:
        for vector in (np.zeros(DIM), np.full(DIM, np.nan), np.eye(DIM + 1)[0], np.eye(DIM), np.eye(DIM)[0] * 2):
            with raises(UsageError, "invalid-embedding"):
                store.marks.put(replace(sent(100), embedding=vector.astype(np.float32)), 1, True)
        assert store.marks.counts().total == 0


def test_pairs_are_measured_by_the_present_model(path: Path) -> None:
    with closing(Store(path)) as store:
        store.marks.put(1, 2, True)
        store.marks.put(sent(100), 3, False)
        store.marks.put(sent(101), 4, True)
    with closing(sqlite3.connect(path)) as db, db:  # as marks that an older model measured
        db.execute("UPDATE marks SET model = 'older', similarity = 0.5 WHERE id IN (1, 2)")
    with closing(Store(path)) as store:
        pairs = store.marks.pairs()
        expected = {2: (new_item(1), new_item(2), True), 4: (new_item(101), new_item(4), True)}
        assert len(pairs.same) == len(expected), "the query of mark 2 is not an item, so it cannot be embedded again"
        cosines = [float(one.embedding @ two.embedding) for one, two, _ in expected.values()]
        np.testing.assert_allclose(np.sort(pairs.similarities), np.sort(cosines), atol=1e-6)
        assert sorted(pairs.queries) == sorted(f"{n:064x}" for n in (1, 101))
        assert dict(zip(pairs.queries, pairs.labels, strict=True)) == {f"{1:064x}": "label 1", f"{101:064x}": None}
        assert pairs.same.all()


def test_later_mark_of_two_galleries_wins(path: Path, tmp_path: Path) -> None:
    schema.create(tmp_path / "other.sqlite", DIM, "fingerprint")
    with closing(Store(path)) as store, closing(Store(tmp_path / "other.sqlite")) as other:
        other.add([new_item(n) for n in (9, 3, 2, 1)])  # other ids, and not all of the items
        for query, item in ((1, 2), (1, 5), (3, 1)):
            store.marks.put(query, item, True)
        older, absent, unknown = store.marks.all()
        other.marks.put(4, 3, False)  # items 1 and 2 there
        later = replace(older, marked_at="9999-01-01T00:00:00.000+00:00")
        assert other.marks.take_over([older, absent, unknown]) == 1
        assert [mark.same for mark in other.marks.all()] == [False, True]
        assert other.marks.take_over([later]) == 1
        assert [mark.same for mark in other.marks.all()] == [True, True]
        assert other.marks.take_over([later]) == 0
        taken = list(other.marks.all())[1]
        assert (taken.query_item, taken.item, taken.source) == (2, 4, "1.png")
