"""Counts of labels and metadata against a plain count in Python, on one connection that does not wait for others."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from serving.gallery import overview
from serving.gallery.connection import connect
from serving.gallery.filters import Filter
from serving.gallery.overview import Overview
from serving.gallery.store import Store
from tests.serving.test_store import DIM, new_item
from zoo.errors import GalleryError

METADATA: list[dict[str, Any]] = [
    {"colour": "red", "year": 1908, "tags": ["a"]},
    {"colour": "red", "year": "1908", "more": {"colour": "red"}},
    {"colour": "blue", "year": 1908.5, "new": True},
    {"colour": None, "new": False, "count": 1},
    {"colour": "red", "new": True},
    {},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "gallery.sqlite"
    Store.create(path, DIM, "fingerprint")
    with Store(path).closing() as store:
        labels = ("a", None, "b", "a", None, "a")
        store.add([new_item(n, label=label, metadata=METADATA[n]) for n, label in enumerate(labels)])
    return path


def test_labels_and_metadata_are_counted(path: Path) -> None:
    values = [(key, value) for one in METADATA for key, value in one.items() if isinstance(value, str | int | float)]
    expected = Counter((key, type(value), value) for key, value in values)
    with closing(Overview(path)) as counted:
        assert counted.labels(9) == (2, [("a", 3), ("b", 1)])
        assert counted.labels(1) == (2, [("a", 3)])
        total, found = counted.metadata(100)
        assert total == len(found) == len(expected)
        assert Counter({(key, type(value), value): n for key, value, n in found}) == expected
        assert [n for *_, n in found] == sorted(expected.values(), reverse=True)
        assert counted.metadata(1) == (total, [("colour", "red", 3)])


def test_one_connection_is_kept_and_sees_what_others_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(overview, "connect", lambda where: opened.append(where) or connect(where))
    with Store(path).closing() as store:
        assert opened == []
        for number in range(3):
            store.add([new_item(100 + number, label="new")])
            assert store.overview.labels(9)[1][-1] == ("new", number + 1) or number > 0
        with store._transaction():  # another's search or write does not hold it up
            assert store.overview.labels(9)[0] == 3
        assert len(opened) == 1
    (path.parent / "bad").write_bytes(b"no database" * 1000)
    with pytest.raises(GalleryError, match="bad"):
        Overview(path.parent / "bad").labels(1)


def test_items_are_listed_by_label_and_metadata(path: Path) -> None:
    with Store(path).closing() as store:
        for label in (None, "a", "c"):
            for where in ({}, {"colour": "red"}, {"colour": ["red", None], "new": True}, {"year": [1908, "1908"]}):
                wanted = [
                    number
                    for number, one in enumerate(METADATA, 1)
                    if label in (None, store.item(number).label)
                    and all(one.get(key) in (some if isinstance(some, list) else [some]) for key, some in where.items())
                ]
                chosen = Filter(where=where)
                assert [item.id for item in store.items(label=label, chosen=chosen)] == wanted
                assert [item.id for item in store.items(1, 2, label, chosen)] == wanted[1:3]
                assert store.count(label, chosen) == len(wanted)
