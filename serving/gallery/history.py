"""What changed in a gallery's store since a number of its journal, as whole rows, for one who follows it elsewhere.

A store's history has a random name, and the journal's numbers count within it: a copy that goes its own way, a restored
one, or a store that was given another model, has another name, and what was read under the old one says nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from zoo.errors import FollowingError, UsageError

Read = Callable[..., list[tuple[Any, ...]]]
Snapshot = Callable[[], AbstractContextManager[None]]

FOLLOWING = "following"
"""Under which the state of a store names whom it follows, and how far."""


@dataclass(frozen=True)
class Position:
    """How far a history was read: up to the `number` of its journal."""

    history: str
    number: int


@dataclass(frozen=True)
class ItemRow:
    """An item with all that belongs to it, as it lies in the tables. `embedding`: float32 [dim], little-endian."""

    id: int
    source: str
    label: str | None
    metadata: str
    content_sha256: str
    added_at: str
    change: int
    key: str | None
    media_type: str
    thumbnail: bytes
    embedding: bytes
    from_thumbnail: int


@dataclass(frozen=True)
class RemovedItem:
    id: int
    change: int


@dataclass(frozen=True)
class MarkRow:
    id: int
    item: int
    query: str
    query_source: str
    same: int
    similarity: float
    model: str
    marked_at: str


@dataclass(frozen=True)
class RemovedMark:
    id: int


@dataclass(frozen=True)
class StateRow:
    """`value`: None where there is none any more."""

    key: str
    value: str | None


Row = ItemRow | RemovedItem | MarkRow | RemovedMark | StateRow


@dataclass(frozen=True)
class Facts:
    """Of the store at the moment at which it was read: name of its history, model, last change, what it holds."""

    history: str
    fingerprint: str
    dim: int
    change: int
    items: int


@dataclass(frozen=True)
class Part:
    """Changed rows in the order of their numbers, up to `number`; `last`: that of the journal at that moment."""

    facts: Facts
    number: int
    last: int
    rows: Sequence[Row]


class History:
    """Of a store. `read` runs a query; `snapshot`: reads inside see one state, of the model it was opened with."""

    def __init__(self, read: Read, snapshot: Snapshot) -> None:
        self._read, self._snapshot = read, snapshot

    def since(self, number: int, rows: int, size: int, history: str | None = None) -> Part:
        """What changed after `number`, up to so many rows and about so many bytes; nothing of another `history`.

        Read on from the number of the answer until that is the last one: only then it is all of one moment. Raises
        `ModelChangedError`, and `FollowingError` for a store that has no history, as an older one that is read-only.
        """
        with self._snapshot():
            facts, last = self._facts(), self._last()
            if history not in (None, facts.history) or number > last:
                return Part(facts, number, last, [])
            found: list[Row] = []
            listed = "SELECT number, of, key FROM journal WHERE number > ? ORDER BY number LIMIT ?"
            for reached, of, key in self._read(listed, number, rows):
                number = reached
                found.append(self._row(of, key))
                size -= _size(found[-1])
                if size <= 0:
                    break
        return Part(facts, number, last, found)

    def check_leads(self) -> None:
        """Raise `UsageError` for a store that follows another: what was written to it alone would be in its way."""
        if self._read("SELECT 1 FROM state WHERE key = ?", FOLLOWING):
            raise UsageError(
                "this gallery follows another one, and changes are made there. To make it one of its own, copy it: "
                "zoo gallery backup GALLERY COPY, zoo gallery restore COPY NEW."
            )

    def _last(self) -> int:
        return int(self._read("SELECT coalesce(max(number), 0) FROM journal")[0][0])

    def _facts(self) -> Facts:
        keys = "('history', 'fingerprint', 'dim', 'change', 'count')"
        state: dict[str, Any] = dict(self._read(f"SELECT key, value FROM state WHERE key IN {keys}"))
        if "history" not in state:
            raise FollowingError("The gallery is of an older schema, and lies where it cannot be brought up to date.")
        dim, change, items = (int(state[key]) for key in ("dim", "change", "count"))
        return Facts(str(state["history"]), str(state["fingerprint"]), dim, change, items)

    def _row(self, of: str, key: Any) -> Row:
        if of == "item":
            return self._item(key)
        return self._mark(key) if of == "mark" else self._state(key)

    def _item(self, key: int) -> ItemRow | RemovedItem:
        rows = self._read(
            "SELECT id, source, label, metadata, content_sha256, added_at, change, keys.key, media_type, data, "
            "embedding, from_thumbnail FROM items JOIN thumbnails ON thumbnails.item = id "
            "JOIN embeddings ON embeddings.item = id LEFT JOIN keys ON keys.item = id WHERE id = ?",
            key,
        )
        if rows:
            return ItemRow(*rows[0])
        return RemovedItem(key, self._read("SELECT change FROM removals WHERE item = ?", key)[0][0])

    def _mark(self, key: int) -> MarkRow | RemovedMark:
        columns = "id, item, query, query_source, same, similarity, model, marked_at"
        rows = self._read(f"SELECT {columns} FROM marks WHERE id = ?", key)
        return MarkRow(*rows[0]) if rows else RemovedMark(key)

    def _state(self, key: str) -> StateRow:
        rows = self._read("SELECT value FROM state WHERE key = ?", key)
        return StateRow(key, str(rows[0][0]) if rows else None)


def _size(row: Row) -> int:
    return 200 + (len(row.thumbnail) + len(row.embedding) + len(row.metadata) if isinstance(row, ItemRow) else 0)
