"""A store that follows another one: rows as they are there take the place of what is here.

All that is taken over at once is one transaction, with how far the other's journal was read, so that whoever reads here
sees the other store as it was at one moment, and one who is killed has taken over all of it or nothing.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

from serving.gallery.database import Database
from serving.gallery.generation import NONE
from serving.gallery.history import (
    FOLLOWING,
    Facts,
    ItemRow,
    MarkRow,
    Position,
    RemovedItem,
    RemovedMark,
    Row,
    StateRow,
)
from serving.gallery.noting import NEW_HISTORY
from zoo.errors import FollowingError, GalleryError

_ITEM = """
INSERT INTO items (id, source, label, metadata, content_sha256, added_at, change) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET source = excluded.source, label = excluded.label, metadata = excluded.metadata,
content_sha256 = excluded.content_sha256, added_at = excluded.added_at, change = excluded.change
"""
_MARK = """
INSERT INTO marks (id, item, query, query_source, same, similarity, model, marked_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET item = excluded.item, query = excluded.query, query_source = excluded.query_source,
same = excluded.same, similarity = excluded.similarity, model = excluded.model, marked_at = excluded.marked_at
"""
_EMPTIED = (
    *(f"DELETE FROM {table}" for table in ("marks", "keys", "thumbnails", "embeddings", "embeddings_other")),
    "DELETE FROM items",
    "DELETE FROM removals",
    "DELETE FROM state WHERE key GLOB 'other *' OR key GLOB 'fact *' OR key IN ('plan', 'folders', 'generation')",
    "DELETE FROM journal",
    NEW_HISTORY,
)
_USED = (
    # SQLite has no row there before the first item, and all of them may have been removed.
    "INSERT INTO sqlite_sequence SELECT 'items', 0 WHERE NOT EXISTS "
    "(SELECT 1 FROM sqlite_sequence WHERE name = 'items')",
    "UPDATE sqlite_sequence SET seq = max(seq, (SELECT coalesce(max(item), 0) FROM removals)) WHERE name = 'items'",
)
"""An id that was an item's once is given to none again, should this store go its own way."""


class Replica:
    """The file `path`, a store as `serving.gallery.schema.create` makes it. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(path)

    def close(self) -> None:
        self._database.close()

    def position(self) -> Position | None:
        """How far the other store was read; None where nothing was."""
        rows = self._database.query("SELECT value FROM state WHERE key = ?", FOLLOWING)
        return Position(**json.loads(rows[0][0])) if rows else None

    def fingerprint(self) -> str:
        """Of the model whose embeddings are here now."""
        return str(self._database.query("SELECT value FROM state WHERE key = 'fingerprint'")[0][0])

    def take(self, rows: Iterable[Row], read: Position, facts: Facts, model: str | None = None) -> None:
        """Take over changed rows, which bring this store to where the other one is: read up to `read`.

        model: as in model.json, where the rows are all of the other store; what is here goes then. Raises
        `FollowingError` where they do not make the store that `facts` are of; all is then as it was.
        """
        try:
            with self._database.transaction() as db:
                if model is not None:
                    _empty(db, facts, model)
                for row in rows:
                    _WRITES[type(row)](db, row)
                _finish(db, read, facts)
        except GalleryError as error:
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                raise FollowingError(f"what came does not go together: {error.__cause__}.") from None
            raise


def _empty(db: sqlite3.Connection, facts: Facts, model: str) -> None:
    for statement in _EMPTIED:
        db.execute(statement)
    values = {"dim": facts.dim, "fingerprint": facts.fingerprint, "model": model}
    values["generation"] = NONE + secrets.token_hex(4)
    db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())


def _finish(db: sqlite3.Connection, read: Position, facts: Facts) -> None:
    state = dict(db.execute("SELECT key, value FROM state WHERE key IN ('fingerprint', 'count')").fetchall())
    if (state["fingerprint"], state["count"]) != (facts.fingerprint, facts.items):
        raise FollowingError(f"what came gives {state['count']} items, and there should be {facts.items}.")
    for statement in _USED:
        db.execute(statement)
    values = {"change": facts.change, FOLLOWING: json.dumps(vars(read))}
    db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", values.items())


def _write_item(db: sqlite3.Connection, row: ItemRow) -> None:
    first = (row.id, row.source, row.label, row.metadata, row.content_sha256, row.added_at, row.change)
    db.execute(_ITEM, first)
    db.execute("INSERT OR REPLACE INTO thumbnails VALUES (?, ?, ?)", (row.id, row.media_type, row.thumbnail))
    db.execute("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", (row.id, row.embedding, row.from_thumbnail))
    if row.key is not None:
        known = "INSERT INTO keys VALUES (?, ?) ON CONFLICT (item) DO UPDATE SET key = excluded.key"
        db.execute(known, (row.id, row.key))


def _remove_item(db: sqlite3.Connection, row: RemovedItem) -> None:
    db.execute("DELETE FROM items WHERE id = ?", (row.id,))
    db.execute("INSERT OR REPLACE INTO removals VALUES (?, ?)", (row.id, row.change))


def _write_mark(db: sqlite3.Connection, row: MarkRow) -> None:
    db.execute(_MARK, astuple(row))


def _remove_mark(db: sqlite3.Connection, row: RemovedMark) -> None:
    db.execute("DELETE FROM marks WHERE id = ?", (row.id,))


def _write_state(db: sqlite3.Connection, row: StateRow) -> None:
    if row.value is None:
        db.execute("DELETE FROM state WHERE key = ?", (row.key,))
    else:
        db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (row.key, row.value))


_WRITES: dict[type[Row], Callable[[sqlite3.Connection, Any], None]] = {
    ItemRow: _write_item,
    RemovedItem: _remove_item,
    MarkRow: _write_mark,
    RemovedMark: _remove_mark,
    StateRow: _write_state,
}
