"""Items and their images as rows: how an item gets its place and its image, and how both are removed.

An item is an image at a place: a file, or the user's key. An image (`contents`) is stored once, however many items show
it, and is removed with the last one. All functions run inside a transaction, and get the number of its change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.gallery.types import (
    ITEM_COLUMNS,
    Item,
    ItemUpdate,
    NewItem,
    PutResult,
    Unchanged,
    check_key,
    equal_metadata,
    item_from_row,
    item_row,
    key_taken,
    metadata_json,
    thumbnail_hash,
    vector_to_blob,
)

_OF_IMAGE = "content = (SELECT id FROM contents WHERE content_sha256 = ?)"
_FREE = f"{_OF_IMAGE} AND key IS NULL AND folder IS NULL"
"""Condition for an item without a place that shows an image."""


@dataclass(frozen=True)
class NewRow:
    """Values of a new item in the file: its `item_row`, its embedding by `vector_to_blob`, and its `thumbnail_hash`."""

    item: NewItem
    columns: tuple[Any, ...]
    embedding: bytes
    picture: bytes | None

    @classmethod
    def of(cls, item: NewItem, dim: int) -> NewRow:
        """Return the row of an item; making it takes time, so that it comes before the transaction."""
        embedding = vector_to_blob(item.embedding, dim, item.source)
        return cls(item, item_row(item), embedding, thumbnail_hash(item.thumbnail))


def add_item(db: sqlite3.Connection, row: NewRow, change: int) -> tuple[int, bool]:
    """Return the id of the item at a new item's place, and whether it is new; one that is there keeps its values.

    An item without a place is the one that shows its image, if there is any; such an item is given the place of a
    new item with the same image.

    Raises:
        ItemConflictError: If the key is another image's.
    """
    item = row.item
    if item.key is not None and (owner := find_item(db, "key = ?", check_key(item.key))):
        if owner.content_sha256 != item.content_sha256:
            raise key_taken(item.key, owner.id)
        return owner.id, False
    if item.key is None and (there := _at_file(db, item)):
        return there.id, False
    has_place = item.key is not None or item.folder is not None
    known = find_item(db, _FREE if has_place else _OF_IMAGE, item.content_sha256)
    if known is None:
        return _insert(db, row, change), True
    if has_place:
        db.execute("UPDATE items SET key = ?, folder = ? WHERE id = ?", (item.key, item.folder, known.id))
        if item.folder is not None:
            db.execute("UPDATE items SET source = ? WHERE id = ?", (item.source, known.id))
    return known.id, False


def put_item(db: sqlite3.Connection, row: NewRow, change: int) -> PutResult:
    """Create the item with a key, or give it another image and another description."""
    item, (source, label, metadata, *_) = row.item, row.columns
    owner = find_item(db, "key = ?", check_key(item.key or ""))
    known = owner or _at_file(db, item) or find_item(db, _FREE, item.content_sha256)
    if known is None:
        return PutResult(_insert(db, row, change), "created")
    _forget_removed(db, item.key, source, item.folder)
    is_new_image = known.content_sha256 != item.content_sha256
    if is_new_image:
        _show(db, known.id, row, change)
    elif owner and (source, label) == (owner.source, owner.label) and equal_metadata(item.metadata, owner.metadata):
        return PutResult(owner.id, "unchanged")
    # A client that names another source does not name a file of the folder.
    folder = "folder" if item.folder is None and source == known.source else "?"
    values = (source, label, metadata, item.key, *([item.folder] if folder == "?" else []), known.id)
    db.execute(f"UPDATE items SET source = ?, label = ?, metadata = ?, key = ?, folder = {folder} WHERE id = ?", values)
    return PutResult(known.id, "replaced" if is_new_image else "updated")


def update_item(db: sqlite3.Connection, update: ItemUpdate, image: NewRow | None, change: int) -> None:
    """Give an item that exists another place, description or image.

    Raises:
        ItemConflictError: If its new key is another item's. Nothing is changed then.
    """
    item = find_item(db, "id = ?", update.item)
    if item is None:
        return
    values: dict[str, Any] = {"source": update.source, "label": update.label}
    if not isinstance(update.folder, Unchanged):
        values["folder"] = update.folder
    if not isinstance(update.metadata, Unchanged):
        values["metadata"] = metadata_json(update.metadata)
    if not isinstance(update.key, Unchanged):
        change_key(db, item.id, update.key)
    columns = ", ".join(f"{column} = ?" for column in values)
    db.execute(f"UPDATE items SET {columns} WHERE id = ?", (*values.values(), item.id))
    key = item.key if isinstance(update.key, Unchanged) else update.key
    _forget_removed(db, key, update.source, values.get("folder"))
    if image is not None and image.item.content_sha256 != item.content_sha256:
        _show(db, item.id, image, change)


def change_key(db: sqlite3.Connection, item_id: int, key: str | None) -> None:
    """Give an item a key, or take it away. Raises `ItemConflictError` if the key is another item's."""
    key = None if key is None else check_key(key)
    owner = None if key is None else find_item(db, "key = ?", key)
    if owner is not None and key is not None and owner.id != item_id:
        raise key_taken(key, owner.id)
    db.execute("UPDATE items SET key = ? WHERE id = ?", (key, item_id))


def delete_items(db: sqlite3.Connection, ids: Iterable[int], change: int, remember: bool = False) -> int:
    """Delete those of the items that exist, and images that no item shows any more; return the number of items.

    remember: note their places, so that an indexed folder does not bring them back.
    """
    deleted, contents = 0, dict[int, None]()
    for item in ids:
        row = db.execute("SELECT content FROM items WHERE id = ?", (item,)).fetchone()
        if row is None:
            continue
        if remember:
            db.execute(
                "INSERT INTO removed_places SELECT source, key, folder, content_sha256 FROM items "
                "JOIN contents ON contents.id = content "
                "WHERE items.id = ? AND (key IS NOT NULL OR folder IS NOT NULL)",
                (item,),
            )
        db.execute("DELETE FROM items WHERE id = ?", (item,))
        deleted, contents[row[0]] = deleted + 1, None
    _drop_unused(db, contents, change)
    return deleted


def find_item(db: sqlite3.Connection, condition: str, *values: object) -> Item | None:
    """Return the first item that meets a condition."""
    row = db.execute(f"SELECT {ITEM_COLUMNS} FROM items WHERE {condition} ORDER BY id LIMIT 1", values).fetchone()
    return item_from_row(row) if row else None


def _at_file(db: sqlite3.Connection, item: NewItem) -> Item | None:
    """Return the item without a key at the file of a new item."""
    if item.folder is None:
        return None
    return find_item(db, "source = ? AND folder = ? AND key IS NULL", item.source, item.folder)


def _insert(db: sqlite3.Connection, row: NewRow, change: int) -> int:
    source, label, metadata, added_at = row.columns
    key, folder = row.item.key, row.item.folder
    content = _content(db, row, change)
    columns = "source, label, metadata, content, added_at, change, key, folder"
    values = (source, label, metadata, content, added_at, change, key, folder)
    cursor = db.execute(f"INSERT INTO items ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    _forget_removed(db, key, source, folder)
    return int(cursor.lastrowid or 0)


def _show(db: sqlite3.Connection, item: int, row: NewRow, change: int) -> None:
    """Let an item show another image."""
    ((before,),) = db.execute("SELECT content FROM items WHERE id = ?", (item,)).fetchall()
    content = _content(db, row, change)
    db.execute("UPDATE items SET content = ?, change = ? WHERE id = ?", (content, change, item))
    _drop_unused(db, [before], change)


def _content(db: sqlite3.Connection, row: NewRow, change: int) -> int:
    """Return the id of an image, which is stored if it is new."""
    sha256, thumbnail = row.item.content_sha256, row.item.thumbnail
    known = db.execute("SELECT id FROM contents WHERE content_sha256 = ?", (sha256,)).fetchone()
    if known is not None:
        return int(known[0])
    cursor = db.execute("INSERT INTO contents (content_sha256, change) VALUES (?, ?)", (sha256, change))
    content = int(cursor.lastrowid or 0)
    db.execute("INSERT INTO thumbnails VALUES (?, ?, ?)", (content, thumbnail.media_type, thumbnail.data))
    db.execute("INSERT INTO embeddings (content, embedding) VALUES (?, ?)", (content, row.embedding))
    sides = thumbnail.size or (None, None)
    values = (content, row.picture, *sides)
    db.execute("INSERT INTO pictures (content, hash, width, height) VALUES (?, ?, ?, ?)", values)
    return content


def _drop_unused(db: sqlite3.Connection, contents: Iterable[int], change: int) -> None:
    """Delete those of the images that no item shows, and note it for the index."""
    unused = "DELETE FROM contents WHERE id = ? AND NOT EXISTS (SELECT 1 FROM items WHERE content = contents.id)"
    gone = [(content,) for content in contents if db.execute(unused, (content,)).rowcount]
    db.executemany(f"INSERT INTO removals VALUES (?, {change})", gone)


def _forget_removed(db: sqlite3.Connection, key: str | None, source: str, folder: str | None) -> None:
    """Forget that somebody removed the item of a place that has one again."""
    of_file = "source = ?2 AND folder = ?3 AND (key IS NULL OR ?1 IS NULL)"
    db.execute(f"DELETE FROM removed_places WHERE key = ?1 OR ({of_file})", (key, source, folder))
