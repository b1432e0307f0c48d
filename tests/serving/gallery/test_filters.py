"""Filters by label and metadata, their cache, and counts of labels and values; compared with plain Python."""

from __future__ import annotations

import operator
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gallery import schema
from serving.gallery import store as store_module
from serving.gallery.filters import Filter
from serving.gallery.store import Store
from tests.raising import raises
from tests.serving.gallery.test_store import DIM, new_item
from zoo.errors import UsageError

MORE = {"colour": "red"}
METADATA: list[dict[str, Any]] = [
    {"colour": "red", "year": 1908, "tags": ["a", "b", "a", None]},
    {"colour": "red", "year": "1908", "more": MORE},
    {"colour": "blue", "year": 1908.5, "new": True},
    {"colour": None, "new": False, "count": 1},
    {"colour": "red", "new": True},
    {},
]


def matching(store: Store, selection: Filter) -> np.ndarray:
    return store.matching_contents(selection, store.position())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gallery.sqlite"
    schema.create(path, DIM, "fingerprint")
    with closing(Store(path)) as store:
        labels = ("a", None, "b", "a", None, "a")
        store.add([new_item(n, label=label, metadata=METADATA[n]) for n, label in enumerate(labels)])
    return path


def test_overview_counts_labels_and_values(path: Path) -> None:
    members = [(key, set(v) if isinstance(v, list) else {v}) for one in METADATA for key, v in one.items() if v != MORE]
    values = [(key, value) for key, several in members for value in several if value is not None]
    expected = Counter((key, type(value), value) for key, value in values)
    with closing(Store(path)) as store:
        overview = store.overview
        assert overview.labels(9) == (2, [("a", 3), ("b", 1)])
        assert overview.labels(1) == (2, [("a", 3)])
        total, rows = overview.metadata(100)
        assert total == len(rows) == len(expected)
        assert Counter({(key, type(value), value): n for key, value, n in rows}) == expected
        assert [n for *_, n in rows] == sorted(expected.values(), reverse=True)
        assert overview.metadata(1) == (total, [("colour", "red", 3)])


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"\0'), max_size=3) | st.just("a\\b")
ATOMS = (
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([1.0, 0.5, 2**62, "1", "true", '["a"]']) | TEXTS
)
OBJECTS = st.dictionaries(TEXTS, ATOMS | st.lists(ATOMS | st.just(["a"]), max_size=3) | st.just({"a": 1}), max_size=4)


NUMBERS = st.integers(-1, 2) | st.sampled_from([0.5, 2.0**62, 2**62 + 1])
SIDES = (["gte"], ["gt"], ["lte"], ["lt"], ["gte", "lt"], ["gt", "lte"], ["lte", "gt"])
RANGES = st.sampled_from(SIDES).flatmap(
    lambda names: st.one_of(*(st.fixed_dictionaries(dict.fromkeys(names, values)) for values in (NUMBERS, TEXTS)))
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(OBJECTS, min_size=1, max_size=5),
    st.dictionaries(TEXTS, ATOMS | st.lists(ATOMS, min_size=1) | RANGES, max_size=2),
)
def test_filter_equals_a_plain_comparison(several: list[dict[str, Any]], where: dict[str, Any]) -> None:
    """Only values of one kind are equal, so true is not 1. A missing key is null. One member of a list is enough."""

    def same_kind(value: object, wanted: object) -> bool:
        return isinstance(value, bool) == isinstance(wanted, bool) and isinstance(value, str) == isinstance(wanted, str)

    def is_within(value: object, bounds: dict[str, Any]) -> bool:
        if not isinstance(value, str | int | float) or not all(same_kind(value, bound) for bound in bounds.values()):
            return False
        names = {"gte": "ge", "lte": "le"}
        return all(getattr(operator, names.get(name, name))(value, bound) for name, bound in bounds.items())

    def equals(value: object, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return is_within(value, wanted)
        return any(same_kind(value, x) and value == x for x in (wanted if isinstance(wanted, list) else [wanted]))

    def matches(metadata: dict[str, Any]) -> bool:
        members = {key: value if isinstance(value, list) else [value] for key, value in metadata.items()}
        return all(any(equals(x, wanted) for x in members.get(key, [None])) for key, wanted in where.items())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gallery.sqlite"
        schema.create(path, DIM, "fingerprint")
        with closing(Store(path)) as store:
            ids = store.add([new_item(n, metadata=metadata) for n, metadata in enumerate(several)]).ids
            hits = [item.id for item in store.items(0, 100, Filter((), where))]
    assert hits == [item for item, metadata in zip(ids, several, strict=True) if matches(metadata)]


def test_overview_omits_integers_that_sqlite_reads_as_infinity(path: Path) -> None:
    with closing(Store(path)) as store:
        before = store.overview.metadata(100)[1]
        store.add([new_item(50)])
        with closing(sqlite3.connect(path)) as older, older:
            older.execute("UPDATE items SET metadata = ? WHERE id = 7", (f'{{"a": {"9" * 400}}}',))
        assert store.overview.metadata(100)[1] == before


def test_overview_sees_other_writers_and_does_not_wait(path: Path) -> None:
    with closing(Store(path)) as store, closing(Store(path)) as another:
        for number in range(3):
            another.add([new_item(100 + number, label="new")])
            assert store.overview.labels(9)[0] == 3
        with another.database.transaction():
            assert ("new", 3) in store.overview.labels(9)[1]


def test_items_by_label_and_metadata(path: Path) -> None:
    with closing(Store(path)) as store:
        for label in (None, "a", "c"):
            for where in ({}, {"colour": "red"}, {"colour": ["red", None], "new": True}, {"year": [1908, "1908"]}):
                wanted = [
                    number
                    for number, one in enumerate(METADATA, 1)
                    if label in (None, store.item(number).label)
                    and all(one.get(key) in (some if isinstance(some, list) else [some]) for key, some in where.items())
                ]
                selection = Filter(() if label is None else (label,), where)
                assert [item.id for item in store.items(selection=selection)] == wanted
                assert [item.id for item in store.items(1, 2, selection)] == wanted[1:3]
                assert store.count(selection) == len(wanted)


def test_matching_contents_are_cached_until_a_change(path: Path) -> None:
    red, label_a = Filter((), {"colour": "red"}), Filter(("a",))
    with closing(Store(path)) as store, closing(Store(path)) as another:
        first = matching(store, red)
        assert first.tolist() == [1, 2, 5]
        assert matching(store, Filter((), {"colour": "red"})) is first
        assert matching(store, label_a).tolist() == [1, 4, 6]
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 9
        another.describe(3, metadata={"colour": "red"})
        assert matching(store, red).tolist() == [1, 2, 3, 5]
        another.remove([1])
        assert matching(store, red).tolist() == [2, 3, 5]
        assert matching(store, label_a).tolist() == [4, 6]


def test_cache_has_a_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    red, label_a = Filter((), {"colour": "red"}), Filter(("a",))
    with closing(Store(path)) as store:
        monkeypatch.setattr(store_module, "CACHE_FILTERS", 1)
        first = matching(store, red)
        second = matching(store, label_a)
        assert matching(store, label_a) is second
        assert matching(store, red) is not first
        monkeypatch.setattr(store_module, "CACHE_BYTES", 1)
        matching(store, label_a)
        assert not store._filter_cache._ids


def test_cache_has_a_limit_for_filters_without_matches(path: Path) -> None:
    with closing(Store(path)) as store:
        for number in range(3 * store_module.CACHE_FILTERS):
            assert len(matching(store, Filter((), {"year": -number - 1}))) == 0
        assert len(store._filter_cache._ids) <= store_module.CACHE_FILTERS


BAD_RANGES = (
    {},
    {"gte": 1, "gt": 2},
    {"near": 3},
    {"gte": 1, "lt": "x"},
    {"gt": None},
    {"gt": True},
    {"gt": [1]},
    {"lt": float("nan")},
    {"lt": 2**63},
)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "x\0y", ["a", "\0"], [{"gt": 1}], *BAD_RANGES])
def test_invalid_values_are_refused(value: Any) -> None:
    with raises(UsageError, "invalid-value"):
        Filter((), {"a": value})


@pytest.mark.parametrize("label", ["a\0b", "\ud800"])
def test_invalid_labels_are_refused(label: str) -> None:
    with raises(UsageError, "invalid-value"):
        Filter((label,))
