"""Marks of a gallery in Milvus: rows of its collection of facts, which are joined with the items here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.gallery.backends.milvus_client import Row, quoted
from serving.gallery.backends.milvus_rows import ids_of, mark_row
from serving.gallery.feedback import ALL_MARKS, Mark, MarkedPairs, MarkFilter, Marks, QueryImage
from serving.gallery.types import Item, MarkCounts, is_unit, utc_now
from zoo.errors import ItemNotFoundError, UsageError

if TYPE_CHECKING:
    from serving.gallery.backends.milvus import MilvusStore

FIELDS = ("id", "query", "item", "order", "value")


class MilvusMarks(Marks):
    """Marks of a gallery in Milvus."""

    def __init__(self, store: MilvusStore) -> None:
        self._store, self._connection, self._collection = store, store.connection, store.facts_name

    def put(self, query: int | QueryImage, item: int, same: bool) -> tuple[Mark, bool]:
        self._store.check_current()
        digest, source, vector = self._query_image(query)
        content, _, other = self._embedded(item)
        if digest == content:
            raise UsageError(f"item {item} is the image that was searched by; mark another image.", code="same-image")
        if vector.shape != other.shape or not is_unit(vector):
            message = f"the query's embedding must be {len(other)} float32 numbers of unit length."
            raise UsageError(message, code="invalid-embedding")
        value = {"source": source, "same": same, "similarity": float(np.clip(vector @ other, -1, 1))}
        value |= {"model": self._store.card.fingerprint, "at": utc_now()}
        new = self._write(digest, item, value)
        (mark,) = self.page(selection=MarkFilter(digest, item))
        return mark, new

    def remove(self, mark: int) -> bool:
        found = self._connection.rows(self._collection, f'id == {mark} and kind == "mark"', ("id",), strong=True)
        self._connection.delete(self._collection, [row["id"] for row in found])
        return bool(found)

    def remove_of(self, items: Mapping[int, Row]) -> None:
        """Remove the marks of which one of the items, by their ids, is the query or the result."""
        self._connection.delete(self._collection, [row["id"] for row in self._of(items)])

    def page(self, offset: int = 0, limit: int = 50, selection: MarkFilter = ALL_MARKS) -> list[Mark]:
        return self._joined(self._rows(selection)[offset : offset + limit])

    def counts(self, selection: MarkFilter = ALL_MARKS) -> MarkCounts:
        rows = self._rows(selection)
        right = sum(row["value"]["same"] for row in rows)
        return MarkCounts(right, len(rows) - right)

    def of_items(self, ids: Sequence[int]) -> int:
        return len(self._of(self._store.by_ids(ids, ("id", "content_sha256"))))

    def all(self) -> Iterator[Mark]:
        yield from self._joined(self._rows(ALL_MARKS))

    def contradictions(self, limit: int = 50) -> tuple[int, list[Mark]]:
        marks = [
            mark
            for mark in self.all()
            if None not in (mark.query_label, mark.label) and (mark.query_label == mark.label) != mark.same
        ]
        return len(marks), marks[:limit]

    def pairs(self) -> MarkedPairs:
        marks, model = list(self.all()), self._store.card.fingerprint
        other = [mark for mark in marks if mark.model != model and mark.query_item is not None]
        ids = sorted({number for mark in other for number in (mark.item, mark.query_item) if number is not None})
        vectors = dict(zip(*self._store.embeddings(ids), strict=True))
        known = [(mark.similarity, mark) for mark in marks if mark.model == model]
        known += [
            (float(vectors[mark.query_item] @ vectors[mark.item]), mark)
            for mark in other
            if mark.query_item in vectors and mark.item in vectors
        ]
        return MarkedPairs(
            np.array([similarity for similarity, _ in known], np.float32),
            np.array([mark.same for _, mark in known], bool),
            [mark.query for _, mark in known],
            [mark.query_label for _, mark in known],
            [mark.item if mark.query_item is None else mark.query_item for _, mark in known],
            len(marks) - len(known),
        )

    def take_over(self, marks: Sequence[Mark]) -> int:
        items = self._by_content([mark.content_sha256 for mark in marks])
        there = {(row["item"], row["query"]): row["value"]["at"] for row in self._rows(ALL_MARKS)}
        taken = 0
        for mark in marks:
            item = items.get(mark.content_sha256)
            if (
                item is None
                or mark.query == mark.content_sha256
                or mark.marked_at <= there.get((item.id, mark.query), "")
            ):
                continue
            value = {"source": mark.query_source, "same": mark.same, "similarity": mark.similarity}
            self._write(mark.query, item.id, value | {"model": mark.model, "at": mark.marked_at})
            taken += 1
        return taken

    def _write(self, query: str, item: int, value: dict[str, Any]) -> bool:
        """Write the mark of a pair, in place of an older one, and return whether it is new."""
        row = mark_row(query, item, value)
        older = self._connection.by_ids(self._collection, [row["id"]], FIELDS, strong=True)
        self._connection.write(self._collection, [{**row, "order": older.get(row["id"], row)["order"]}])
        return not older

    def _rows(self, selection: MarkFilter) -> list[Row]:
        """Return the rows of marks, in the order in which they were first made."""
        conditions = ['kind == "mark"']
        conditions += [] if selection.query is None else [f"query == {quoted(selection.query)}"]
        conditions += [] if selection.item is None else [f"item == {selection.item}"]
        pieces = self._connection.scan(self._collection, " and ".join(conditions), FIELDS)
        rows = [row for piece in pieces for row in piece if selection.same in (None, row["value"]["same"])]
        return sorted(rows, key=lambda row: (row["order"], row["id"]))

    def _of(self, items: Mapping[int, Row]) -> list[Row]:
        contents = {row["content_sha256"] for row in items.values()}
        return (
            [row for row in self._rows(ALL_MARKS) if row["item"] in items or row["query"] in contents] if items else []
        )

    def _joined(self, rows: Sequence[Row]) -> list[Mark]:
        """Return the marks of rows whose results are items."""
        results = self._store.items_by_id(sorted({row["item"] for row in rows}))
        queries = self._by_content([row["query"] for row in rows])
        return [_mark(row, results[row["item"]], queries.get(row["query"])) for row in rows if row["item"] in results]

    def _by_content(self, contents: Sequence[str]) -> dict[str, Item]:
        found = self._store.items_by_id([number for content in set(contents) for number in ids_of(content)])
        return {item.content_sha256: item for item in found.values()}

    def _query_image(self, query: int | QueryImage) -> tuple[str, str, np.ndarray]:
        if isinstance(query, QueryImage):
            return query.content_sha256, query.source, np.asarray(query.embedding, np.float32)
        return self._embedded(query)

    def _embedded(self, item: int) -> tuple[str, str, np.ndarray]:
        rows = self._store.by_ids([item], ("id", "content_sha256", "source", "vector"), strong=True)
        if not rows:
            raise ItemNotFoundError(f"the gallery has no item {item}.")
        return rows[item]["content_sha256"], rows[item]["source"], np.array(rows[item]["vector"], np.float32)


def _mark(row: Row, result: Item, query: Item | None) -> Mark:
    value = row["value"]
    return Mark(
        id=row["id"],
        query=row["query"],
        query_item=query.id if query else None,
        query_source=query.source if query else value["source"],
        query_label=query.label if query else None,
        item=result.id,
        content_sha256=result.content_sha256,
        source=result.source,
        label=result.label,
        same=value["same"],
        similarity=value["similarity"],
        model=value["model"],
        marked_at=value["at"],
    )
