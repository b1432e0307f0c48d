"""Relevance feedback: marks of results as right or wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving.gallery.types import MAX_ID, is_unit, utc_now
from zoo.errors import ItemNotFoundError, UsageError

Read = Callable[..., list[tuple[Any, ...]]]
Writing = Callable[[], AbstractContextManager[sqlite3.Connection]]
_PIECE = 2000
_AT_ONCE = 400
"""Ids in one statement, which takes only so many values."""

_NOW = "(SELECT value FROM state WHERE key = 'fingerprint')"
_FROM = "marks JOIN items ON items.id = marks.item LEFT JOIN items AS asked ON asked.content_sha256 = marks.query"
_COLUMNS = (
    "marks.id, marks.query, asked.id, coalesce(asked.source, marks.query_source), asked.label, items.id, "
    "items.content_sha256, items.source, items.label, marks.same, marks.similarity, marks.model, marks.marked_at"
)
_CONTRADICTS = "(asked.label = items.label) != marks.same"
"""NULL, and so not so, where one of the two has no label."""

_PUT = """
INSERT INTO marks (item, query, query_source, same, similarity, model, marked_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (item, query) DO UPDATE SET query_source = excluded.query_source, same = excluded.same,
similarity = excluded.similarity, model = excluded.model, marked_at = excluded.marked_at
"""


@dataclass(frozen=True)
class QueryImage:
    """An image that was searched by without being an item: the SHA-256 (hex) of its file, its unit embedding, float32
    [dim], and a name for it.
    """

    content_sha256: str
    embedding: np.ndarray
    source: str = ""


@dataclass(frozen=True)
class Mark:
    """What was said of a pair.

    query: the SHA-256 (hex) of the image searched by; query_item: the item that it is, if it is one; item: the result,
    with its own content_sha256, source and label. similarity: the cosine of the two, by the model of that fingerprint.
    marked_at: UTC, ISO 8601.
    """

    id: int
    query: str
    query_item: int | None
    query_source: str
    query_label: str | None
    item: int
    content_sha256: str
    source: str
    label: str | None
    same: bool
    similarity: float
    model: str
    marked_at: str


@dataclass(frozen=True)
class MarkFilter:
    """Which marks are meant: of a query by its SHA-256, of a result by its id, of one verdict; all by default."""

    query: str | None = None
    item: int | None = None
    same: bool | None = None

    def sql(self) -> tuple[str, list[object]]:
        given = {"marks.query": self.query, "marks.item": self.item, "marks.same": self.same}
        known = {column: value for column, value in given.items() if value is not None}
        return " AND ".join(f"{column} = ?" for column in known) or "1", list(known.values())


@dataclass(frozen=True)
class MarkCounts:
    right: int
    wrong: int

    @property
    def total(self) -> int:
        return self.right + self.wrong


@dataclass(frozen=True)
class MarkedPairs:
    """What can be learnt from: similarities by the gallery's own model, float32 [n]; whether the two are of one class,
    bool [n]; the SHA-256 of each pair's query; and its label, where it is an item that has one. left_out: how many
    marks are not among them.
    """

    similarities: np.ndarray
    same: np.ndarray
    queries: list[str]
    labels: list[str | None]
    left_out: int = 0


ALL_MARKS = MarkFilter()


class Marks:
    """The marks of a store. `read` runs a query; `writing` is a transaction."""

    def __init__(self, read: Read, writing: Writing) -> None:
        self._read, self._writing = read, writing

    def put(self, query: int | QueryImage, item: int, same: bool) -> tuple[Mark, bool]:
        """Mark the pair of a query (an item, or one that was sent) and an item; the mark, and whether it is new.

        Raises `ItemNotFoundError`, and `UsageError` where both are the same image or the query's embedding is none.
        """
        with self._writing() as db:
            digest, source, vector = self._asked(query)
            content, _, other = self._item(item)
            if digest == content:
                raise UsageError(f"item {item} is the image that was searched by; what is marked is another.")
            _check(vector, other)
            ((model,),) = self._read(f"SELECT {_NOW}")
            known = self.counts(MarkFilter(digest, item)).total
            similarity = float(np.clip(vector @ other, -1, 1))
            db.execute(_PUT, (item, digest, source, same, similarity, model, utc_now()))
            (mark,) = self.page(selection=MarkFilter(digest, item))
        return mark, not known

    def remove(self, mark: int) -> bool:
        """Take a mark back; whether there was one of this id."""
        with self._writing() as db:
            return db.execute("DELETE FROM marks WHERE id = ?", (_possible(mark),)).rowcount > 0

    def page(self, offset: int = 0, limit: int = 50, selection: MarkFilter = ALL_MARKS) -> list[Mark]:
        """Marks in the order in which they were first made, from `offset` on."""
        return self._marks(*selection.sql(), offset, limit)

    def counts(self, selection: MarkFilter = ALL_MARKS) -> MarkCounts:
        condition, values = selection.sql()
        sql = f"SELECT count(*), coalesce(sum(same), 0) FROM marks WHERE {condition}"
        ((total, right),) = self._read(sql, *values)
        return MarkCounts(right, total - right)

    def of_items(self, ids: Sequence[int]) -> int:
        """How many marks go when these items are removed: those of which one is the query or the result."""
        found: set[int] = set()
        for start in range(0, len(ids), _AT_ONCE):
            some = [_possible(one) for one in ids[start : start + _AT_ONCE]]
            places = ", ".join("?" * len(some))
            asked = f"SELECT content_sha256 FROM items WHERE id IN ({places})"
            sql = f"SELECT id FROM marks WHERE item IN ({places}) UNION SELECT id FROM marks WHERE query IN ({asked})"
            found |= {row[0] for row in self._read(sql, *some, *some)}
        return len(found)

    def all(self) -> Iterator[Mark]:
        """Every mark, in the order in which they were first made."""
        last = 0
        while some := self._marks("marks.id > ?", [last], 0, _PIECE):
            yield from some
            last = some[-1].id

    def contradictions(self, limit: int = 50) -> tuple[int, list[Mark]]:
        """How many marks say otherwise than the labels of their two items, and up to `limit` of them."""
        ((total,),) = self._read(f"SELECT count(*) FROM {_FROM} WHERE {_CONTRADICTS}")
        return total, self._marks(_CONTRADICTS, [], 0, limit)

    def pairs(self) -> MarkedPairs:
        """Of marks that another model measured, pairs of items are measured anew, and the others are left out."""
        columns = "marks.similarity, marks.same, marks.query, asked.label"
        rows = self._read(f"SELECT {columns} FROM {_FROM} WHERE marks.model = {_NOW}")
        vectors = "JOIN embeddings AS one ON one.item = asked.id JOIN embeddings AS two ON two.item = items.id"
        other = f"marks.model != {_NOW} AND asked.id IS NOT NULL"
        for one, two, *rest in self._read(
            f"SELECT one.embedding, two.embedding, marks.same, marks.query, asked.label FROM {_FROM} {vectors} "
            f"WHERE {other}"
        ):
            rows.append((float(_vector(one) @ _vector(two)), *rest))
        return MarkedPairs(
            np.array([row[0] for row in rows], np.float32),
            np.array([row[1] for row in rows], bool),
            [row[2] for row in rows],
            [row[3] for row in rows],
            self.counts().total - len(rows),
        )

    def take_over(self, marks: Sequence[Mark]) -> int:
        """Add the marks of another gallery whose results are items here, by their content; how many that were.

        Of a pair that is marked in both the later mark counts.
        """
        taken = 0
        with self._writing() as db:
            for mark in marks:
                items = self._read("SELECT id FROM items WHERE content_sha256 = ?", mark.content_sha256)
                if not items or mark.query == mark.content_sha256:
                    continue
                row = (items[0][0], mark.query, mark.query_source, mark.same, mark.similarity, mark.model)
                later = " WHERE excluded.marked_at > marks.marked_at"
                taken += db.execute(_PUT + later, (*row, mark.marked_at)).rowcount
        return taken

    def _marks(self, condition: str, values: Sequence[object], offset: int, limit: int) -> list[Mark]:
        sql = f"SELECT {_COLUMNS} FROM {_FROM} WHERE {condition} ORDER BY marks.id LIMIT ? OFFSET ?"
        rows = self._read(sql, *values, limit, offset)
        return [_mark(row) for row in rows]

    def _asked(self, query: int | QueryImage) -> tuple[str, str, np.ndarray]:
        if isinstance(query, QueryImage):
            return query.content_sha256, query.source, np.asarray(query.embedding, np.float32)
        return self._item(query)

    def _item(self, item: int) -> tuple[str, str, np.ndarray]:
        columns = "content_sha256, source, embedding"
        rows = self._read(f"SELECT {columns} FROM items JOIN embeddings ON item = id WHERE id = ?", _possible(item))
        if not rows:
            raise ItemNotFoundError(f"the gallery has no item {item}.")
        content, source, blob = rows[0]
        return content, source, _vector(blob)


def _mark(row: tuple[Any, ...]) -> Mark:
    mark = Mark(*row)
    return replace(mark, same=bool(mark.same))  # SQLite has no truth values


def _check(query: np.ndarray, item: np.ndarray) -> None:
    if query.shape != item.shape or not is_unit(query):
        raise UsageError(f"the query's embedding is {len(item)} float32 numbers of unit length, as this model's are.")


def _vector(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, "<f4")


def _possible(number: int) -> int:
    """An id that SQLite can look up; 0, which none has, for one that it cannot."""
    return number if 0 < number <= MAX_ID else 0
