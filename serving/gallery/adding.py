"""One item that is put into a store, within the transaction of whoever adds it."""

from __future__ import annotations

import sqlite3
from typing import Any

from serving.gallery.items import Item, NewItem
from serving.gallery.rows import ITEM, item_of
from zoo.errors import ItemConflictError


def put(db: sqlite3.Connection, item: NewItem, row: tuple[Any, ...], embedding: bytes, change: int) -> tuple[int, bool]:
    """The id of the item with this content, and whether it is new. row: as `row_of` makes it; embedding: as `blob_of`.

    Raises `ItemConflictError` for a key that is another image's, or an image that is there under another key.
    """
    known = _known(db, item)
    if known is not None:
        return known, False
    cursor = db.execute(
        "INSERT INTO items (source, label, metadata, content_sha256, added_at, change) VALUES (?, ?, ?, ?, ?, ?)",
        (*row, change),
    )
    new_id, thumbnail = int(cursor.lastrowid or 0), item.thumbnail
    db.execute("INSERT INTO thumbnails VALUES (?, ?, ?)", (new_id, thumbnail.media_type, thumbnail.data))
    db.execute("INSERT INTO embeddings (item, embedding) VALUES (?, ?)", (new_id, embedding))
    _give_key(db, new_id, item.key)
    return new_id, True


def _known(db: sqlite3.Connection, item: NewItem) -> int | None:
    """The id of the item with this content, which has the key then, if one is given."""
    if item.key is not None:
        taken = _one(db, "id = (SELECT item FROM keys WHERE key = ?)", item.key)
        if taken and taken.content_sha256 != item.content_sha256:
            raise ItemConflictError(f"the key {item.key!r} is that of item {taken.id}, which is another image.")
    known = _one(db, "content_sha256 = ?", item.content_sha256)
    if known is None:
        return None
    if known.key is None:
        _give_key(db, known.id, item.key)
    elif item.key not in (None, known.key):
        raise ItemConflictError(f"the image is there already, as item {known.id} with the key {known.key!r}.")
    return known.id


def _one(db: sqlite3.Connection, condition: str, value: str) -> Item | None:
    found = db.execute(f"SELECT {ITEM} FROM items WHERE {condition}", (value,)).fetchone()
    return item_of(found) if found else None


def _give_key(db: sqlite3.Connection, item_id: int, key: str | None) -> None:
    if key is not None:
        db.execute("INSERT INTO keys VALUES (?, ?)", (item_id, key))
