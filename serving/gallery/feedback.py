"""Relevance feedback: marks of results as right or wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from serving.gallery.database import Database, Row
from serving.gallery.types import LISTED, MAX_ID, MarkCounts, is_unit, utc_now
from zoo.errors import ItemNotFoundError, UsageError

MARKS_AT_ONCE = 2000

_FINGERPRINT = "(SELECT value FROM state WHERE key = 'fingerprint')"
_FROM = "marks JOIN items ON items.id = marks.item LEFT JOIN items AS asked ON asked.content_sha256 = marks.query"
_COLUMNS = (
    "marks.id, marks.query, asked.id, coalesce(asked.source, marks.query_source), asked.label, items.id, "
    "items.content_sha256, items.source, items.label, marks.same, marks.similarity, marks.model, marks.marked_at"
)
_CONTRADICTS = "(asked.label = items.label) != marks.same"
"""NULL, and so false, if one of the two items has no label."""

_PUT = """
INSERT INTO marks (item, query, query_source, same, similarity, model, marked_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (item, query) DO UPDATE SET query_source = excluded.query_source, same = excluded.same,
similarity = excluded.similarity, model = excluded.model, marked_at = excluded.marked_at
"""


@dataclass(frozen=True)
class QueryImage:
    """An image that was searched by and need not be an item.

    Attributes:
        content_sha256: Hash of its file, in hex.
        embedding: Unit vector, float32 [dim].
        source: A name for it.
    """

    content_sha256: str
    embedding: np.ndarray
    source: str = ""


@dataclass(frozen=True)
class Mark:
    """A pair of images that a user marked.

    Attributes:
        query: SHA-256 (hex) of the image that was searched by.
        query_item: The item that this image is, if it is one.
        item: The result, with its content_sha256, source and label.
        same: Whether the result is right.
        similarity: Cosine of the pair by the model with the fingerprint `model`.
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
    """Marks of a query (SHA-256), of a result (id), or of one verdict; all marks by default."""

    query: str | None = None
    item: int | None = None
    same: bool | None = None

    def sql(self) -> tuple[str, list[object]]:
        """Return the condition on `marks`, and its values."""
        columns = {"marks.query": self.query, "marks.item": self.item, "marks.same": self.same}
        values = {column: value for column, value in columns.items() if value is not None}
        return " AND ".join(f"{column} = ?" for column in values) or "1", list(values.values())


ALL_MARKS = MarkFilter()


@dataclass(frozen=True)
class MarkedPairs:
    """Marked pairs with similarities by the gallery's present model.

    Attributes:
        similarities: float32 [n].
        same: Whether the two are of one class, bool [n].
        queries: SHA-256 of each pair's query.
        labels: Label of each pair's query, None if it is not an item or has no label.
        items: The item that each pair's query is, else the result: its neighbourhood tells the pair's background.
        left_out: Marks that another model measured and that cannot be measured again.
    """

    similarities: np.ndarray
    same: np.ndarray
    queries: list[str]
    labels: list[str | None]
    items: list[int]
    left_out: int = 0


class Marks:
    """The marks of a gallery."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query

    def put(self, query: int | QueryImage, item: int, same: bool) -> tuple[Mark, bool]:
        """Mark the pair of a query (an item, or an image) and an item; return the mark, and whether it is new.

        Raises:
            ItemNotFoundError: If there is no such item.
            UsageError: If both are one image (code "same-image"), or the query's embedding is not a unit vector of the
                model's length (code "invalid-embedding").
        """
        with self._database.transaction(check_model=True) as db:
            image = query if isinstance(query, QueryImage) else self._image(query)
            result = self._image(item)
            if image.content_sha256 == result.content_sha256:
                message = f"item {item} is the image that was searched by; mark another image."
                raise UsageError(message, code="same-image")
            vector = np.asarray(image.embedding, np.float32)
            if vector.shape != result.embedding.shape or not is_unit(vector):
                message = f"the query's embedding must have {len(result.embedding)} float32 numbers and unit length."
                raise UsageError(message, code="invalid-embedding")
            pair = MarkFilter(image.content_sha256, item)
            known = self.counts(pair).total
            similarity = float(np.clip(vector @ result.embedding, -1, 1))
            model = self._database.fingerprint
            db.execute(_PUT, (item, image.content_sha256, image.source, same, similarity, model, utc_now()))
            (mark,) = self.page(selection=pair)
        return mark, not known

    def remove(self, mark: int) -> bool:
        """Take a mark back; return whether it existed."""
        with self._database.transaction(check_model=True) as db:
            return db.execute("DELETE FROM marks WHERE id = ?", (_valid_id(mark),)).rowcount > 0

    def page(self, offset: int = 0, limit: int = 50, selection: MarkFilter = ALL_MARKS) -> list[Mark]:
        """Return a page of the marks, in the order in which they were first made."""
        return self._marks(*selection.sql(), offset, limit)

    def counts(self, selection: MarkFilter = ALL_MARKS) -> MarkCounts:
        condition, values = selection.sql()
        sql = f"SELECT count(*), coalesce(sum(same), 0) FROM marks WHERE {condition}"
        ((total, right),) = self._query(sql, *values)
        return MarkCounts(right, total - right)

    def of_items(self, ids: Sequence[int]) -> int:
        """Return how many marks are removed with these items, as a query or as a result."""
        queries = f"SELECT content_sha256 FROM items WHERE id IN {LISTED}"
        sql = f"SELECT count(*) FROM marks WHERE item IN {LISTED} OR query IN ({queries})"
        ((count,),) = self._query(sql, *2 * [json.dumps(list(ids))])
        return int(count)

    def all(self) -> Iterator[Mark]:
        """Yield every mark, in the order in which they were first made."""
        last = 0
        while marks := self._marks("marks.id > ?", [last], 0, MARKS_AT_ONCE):
            yield from marks
            last = marks[-1].id

    def contradictions(self, limit: int = 50) -> tuple[int, list[Mark]]:
        """Return the number of marks that contradict the labels of their two items, and up to `limit` of them."""
        ((total,),) = self._query(f"SELECT count(*) FROM {_FROM} WHERE {_CONTRADICTS}")
        return total, self._marks(_CONTRADICTS, [], 0, limit)

    def pairs(self) -> MarkedPairs:
        """Return the marked pairs. Pairs of items that another model measured are measured again."""
        columns = "marks.similarity, marks.same, marks.query, asked.label, coalesce(asked.id, items.id)"
        rows = self._query(f"SELECT {columns} FROM {_FROM} WHERE marks.model = {_FINGERPRINT}")
        vectors = "JOIN embeddings AS one ON one.item = asked.id JOIN embeddings AS two ON two.item = items.id"
        for one, two, *rest in self._query(
            f"SELECT one.embedding, two.embedding, marks.same, marks.query, asked.label, asked.id FROM {_FROM} "
            f"{vectors} WHERE marks.model != {_FINGERPRINT} AND asked.id IS NOT NULL"
        ):
            rows.append((float(np.frombuffer(one, "<f4") @ np.frombuffer(two, "<f4")), *rest))
        return MarkedPairs(
            np.array([row[0] for row in rows], np.float32),
            np.array([row[1] for row in rows], bool),
            [row[2] for row in rows],
            [row[3] for row in rows],
            [row[4] for row in rows],
            self.counts().total - len(rows),
        )

    def take_over(self, marks: Sequence[Mark]) -> int:
        """Add the marks of another gallery whose results are items here, by their content; return their number.

        Of a pair that is marked in both galleries, the later mark wins.
        """
        taken = 0
        with self._database.transaction(check_model=True) as db:
            for mark in marks:
                items = self._query("SELECT id FROM items WHERE content_sha256 = ?", mark.content_sha256)
                if not items or mark.query == mark.content_sha256:
                    continue
                row = (items[0][0], mark.query, mark.query_source, mark.same, mark.similarity, mark.model)
                later = " WHERE excluded.marked_at > marks.marked_at"
                taken += db.execute(_PUT + later, (*row, mark.marked_at)).rowcount
        return taken

    def _marks(self, condition: str, values: Sequence[object], offset: int, limit: int) -> list[Mark]:
        sql = f"SELECT {_COLUMNS} FROM {_FROM} WHERE {condition} ORDER BY marks.id LIMIT ? OFFSET ?"
        return [_mark(row) for row in self._query(sql, *values, limit, offset)]

    def _image(self, item: int) -> QueryImage:
        """Return the image of an item."""
        columns = "content_sha256, embedding, source"
        rows = self._query(f"SELECT {columns} FROM items JOIN embeddings ON item = id WHERE id = ?", _valid_id(item))
        if not rows:
            raise ItemNotFoundError(f"the gallery has no item {item}.")
        content, blob, source = rows[0]
        return QueryImage(content, np.frombuffer(blob, "<f4"), source)


def _mark(row: Row) -> Mark:
    mark = Mark(*row)
    return replace(mark, same=bool(mark.same))  # SQLite has no booleans


def _valid_id(number: int) -> int:
    """Return an id that SQLite can look up; 0, which no row has, for one that it cannot."""
    return number if 0 < number <= MAX_ID else 0
