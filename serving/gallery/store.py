"""The SQLite store of a gallery: items, embeddings and thumbnails, each change with a number.

Every transaction that changes something takes the next change number. Items and removals carry it, so that an index in
any process can ask for the changes since the number it has seen. The store also names the index generation in use.

An open store belongs to the model it was opened with. After a swap of models (serving.gallery.staging), operations on
embeddings raise `ModelChangedError`; items, labels and thumbnails can still be read and written.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from serving.gallery import schema
from serving.gallery.database import Database
from serving.gallery.feedback import Marks
from serving.gallery.filters import EVERYTHING, Filter, where_clause
from serving.gallery.staging import Slot, Staging
from serving.gallery.types import (
    ITEM_COLUMNS,
    MAX_ID,
    UNCHANGED,
    Added,
    Block,
    ChangeStream,
    Item,
    ItemUpdate,
    NewItem,
    Stats,
    StoreChanges,
    Thumbnail,
    Unchanged,
    blob_to_vector,
    blobs_to_vectors,
    item_from_row,
    item_row,
    metadata_json,
    vector_to_blob,
)
from zoo.errors import GalleryError, ItemConflictError, ItemNotFoundError, ModelChangedError

CACHE_BYTES = 64 * 2**20
"""Of all that is remembered; the filter that was longest not asked for is forgotten first."""

CACHE_FILTERS = 64
_LABELS = """
SELECT label, count(*) AS items, count(*) OVER () FROM items WHERE label IS NOT NULL
GROUP BY label ORDER BY items DESC, label LIMIT ?
"""

_METADATA = """
SELECT key, atom, type, count(*) AS items, count(*) OVER () FROM (
  SELECT one.key, one.atom, one.type FROM items, json_each(items.metadata) AS one WHERE one.atom IS NOT NULL
  UNION ALL
  SELECT key, atom, type FROM (
    SELECT DISTINCT items.id, list.key, one.atom, one.type
    FROM items, json_each(items.metadata) AS list, json_each(list.value) AS one
    WHERE list.type = 'array' AND one.atom IS NOT NULL
  )
)
GROUP BY key, type, atom ORDER BY items DESC, key, atom LIMIT ?
"""
"""Objects and nulls have no atom; of a list each member counts, once an item, as a filter finds it."""

_KEYS = """
SELECT DISTINCT one.key FROM (SELECT metadata FROM items ORDER BY id LIMIT ?) AS first, json_each(first.metadata) AS one
ORDER BY one.key
"""

BLOCK_ROWS = 10_000
"""How many embeddings are read at a time."""


def insert_item(
    db: sqlite3.Connection, item: NewItem, row: tuple[Any, ...], embedding: bytes, change: int
) -> tuple[int, bool]:
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


class FilterCache:
    """Of a store; `read` runs a query on it, as `Database.query`, and `position` says where it is. Of many threads."""

    def __init__(self, read: Callable[..., list[tuple[Any, ...]]], position: Callable[[], tuple[int, str]]) -> None:
        self._read, self._position, self._lock = read, position, threading.Lock()
        self._at: tuple[int, str] | None = None
        self._held: OrderedDict[str, np.ndarray] = OrderedDict()

    def ids(self, selection: Filter) -> np.ndarray:
        """The ids, int64, ascending, of the items that a filter lets through. They are shared: not to be written to."""
        condition, values = selection.sql()
        key, at = json.dumps([condition, values]), self._position()
        with self._lock:
            if at == self._at and key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        rows = self._read(f"SELECT id FROM items WHERE {condition} ORDER BY id", *values)
        found = np.array([row[0] for row in rows], np.int64)
        found.flags.writeable = False
        self._remember(key, at, found)
        return found

    def _remember(self, key: str, at: tuple[int, str], found: np.ndarray) -> None:
        """at: where the store was before it was read, so that what is remembered is of then or newer."""
        with self._lock:
            if at != self._at:
                self._held.clear()
                self._at = at
            self._held[key] = found
            while len(self._held) > CACHE_FILTERS or self._bytes() > CACHE_BYTES:
                self._held.popitem(last=False)

    def _bytes(self) -> int:
        return sum(len(key) + ids.nbytes for key, ids in self._held.items())


class Overview:
    """Of a store; `read` runs a query on it, as `Database.query`."""

    def __init__(self, read: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._read = read

    def labels(self, limit: int) -> tuple[int, list[tuple[str, int]]]:
        """How many labels there are, and how many items have each; the most frequent first, up to `limit` of them."""
        rows = self._read(_LABELS, limit)
        return (rows[0][2] if rows else 0), [(label, items) for label, items, _ in rows]

    def metadata(self, limit: int) -> tuple[int, list[tuple[str, str | int | float | bool, int]]]:
        """How many values there are, and key, value and items of each; the most frequent first, up to `limit`."""
        rows = self._read(_METADATA, limit)
        found = [(key, kind == "true" if kind in ("true", "false") else atom, n) for key, atom, kind, n, _ in rows]
        # Older stores may hold whole numbers that SQLite reads as infinity, which JSON has not.
        return (rows[0][4] if rows else 0), [one for one in found if one[1] not in (math.inf, -math.inf)]

    def keys(self, limit: int) -> list[str]:
        """What the metadata of the first `limit` items have, whatever its value, in order."""
        return [key for (key,) in self._read(_KEYS, limit)]


def sample_items(read: Callable[..., list[tuple[Any, ...]]], n: int, seed: int | None) -> list[Item]:
    """`n` different items in random order; all of them where there are fewer. `read` runs queries of one snapshot."""
    first, last = read("SELECT min(id), max(id) FROM items")[0]
    if first is None:
        return []
    starts = random.Random(seed).sample(range(first, last + 1), min(2 * n, last + 1 - first))
    # The next item at or after a random id: quick at any size, and gaps left by removals do no harm.
    rows = [read(f"SELECT {ITEM_COLUMNS} FROM items WHERE id >= ? ORDER BY id LIMIT 1", start)[0] for start in starts]
    # Gaps may have led to one item more than once; the first items make up the number.
    rows += read(f"SELECT {ITEM_COLUMNS} FROM items ORDER BY id LIMIT ?", n)
    return [item_from_row(row) for row in {row[0]: row for row in rows}.values()][:n]


class Store:
    """One open SQLite file. Safe to use from several threads; several processes may have it open at once."""

    def __init__(self, path: Path, other: bool = False) -> None:
        """Open an existing store. Raises `GalleryError` if it is missing, damaged or of a newer version.

        other: for its other model, to be read as if it had that one: what that model has not embedded is not seen.
        """
        self.path, self.other = path, other
        self._database = Database(path, other)
        self._query = self._database.query
        self._snapshot, self._transaction = self._database.snapshot, self._database.transaction
        self.marks = Marks(self._query, self._transaction_of_this_model)
        self.overview = Overview(self._query)
        self.filter_cache = FilterCache(self._query, self.position)
        self.staging = Staging(self._query, self._transaction)
        try:
            state = dict(self._query("SELECT key, value FROM state"))
            if "fingerprint" not in state:
                raise GalleryError(f"{path} holds no embeddings of another model.")
            self.dim, self.fingerprint = int(state["dim"]), str(state["fingerprint"])
            self.model = str(state["model"]) if "model" in state else None
            if (metric := state.get("metric", schema.METRIC)) != schema.METRIC:
                raise GalleryError(f"{path} is for {metric} similarity; this version of dml-zoo has {schema.METRIC}.")
        except BaseException:
            self._database.close()
            raise

    @property
    def _db(self) -> sqlite3.Connection:
        """Of the snapshot or the transaction that this thread is within."""
        return self._database.db

    def reopen(self) -> Store:
        """The same store, opened anew, with the model that it has now."""
        return Store(self.path, self.other)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def closing(self) -> Iterator[Self]:
        try:
            yield self
        finally:
            self.close()

    def add(self, items: Sequence[NewItem]) -> Added:
        """Add all of `items` in one transaction, or none; content that is there already is left alone.

        An item with a key is the one that has it. Raises `ItemConflictError` where that is of another content, or the
        content is there under another key.
        """
        rows = [item_row(item) for item in items]
        blobs = [vector_to_blob(item.embedding, self.dim, item.source) for item in items]
        with self._writing() as change:
            self._check_model()
            done = [insert_item(self._db, *parts, change) for parts in zip(items, rows, blobs, strict=True)]
        return Added([item_id for item_id, _ in done], sum(new for _, new in done))

    def remove(self, ids: Sequence[int]) -> int:
        """Remove items in one transaction; how many of the ids there were."""
        possible = sorted({item_id for item_id in ids if 0 < item_id <= MAX_ID})
        with self._writing() as change:
            gone = [i for i in possible if self._db.execute("DELETE FROM items WHERE id = ?", (i,)).rowcount]
            self._db.executemany("INSERT INTO removals VALUES (?, ?)", [(i, change) for i in gone])
        return len(gone)

    def update(self, places: Sequence[ItemUpdate]) -> None:
        """Give items another source and label, or metadata too, all in one transaction."""
        described = [
            (metadata_json(place.metadata), place.item) for place in places if not isinstance(place.metadata, Unchanged)
        ]
        with self._writing():
            rows = [(place.source, place.label, place.item) for place in places]
            self._db.executemany("UPDATE items SET source = ?, label = ? WHERE id = ?", rows)
            self._db.executemany("UPDATE items SET metadata = ? WHERE id = ?", described)

    def describe(
        self,
        item_id: int,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, Any] | Unchanged = UNCHANGED,
    ) -> int:
        """Give an item another label, other metadata, or both; the number of this change. Raises `ItemNotFoundError`.

        What is not given is not written, so that two who each change one of them do not undo one another's.
        """
        given = {"label": label, "metadata": metadata if isinstance(metadata, Unchanged) else metadata_json(metadata)}
        changed = {column: value for column, value in given.items() if value is not UNCHANGED}
        columns = ", ".join(f"{column} = ?" for column in changed) or "id = id"
        with self._writing() as change:
            values = (*changed.values(), min(item_id, MAX_ID))
            found = self._db.execute(f"UPDATE items SET {columns} WHERE id = ?", values)
            if not found.rowcount:
                raise ItemNotFoundError(f"the gallery has no item {item_id}.")
        return change

    def ids(self) -> np.ndarray:
        """The ids, int64, ascending, of all items."""
        return np.array([row[0] for row in self._query("SELECT id FROM items ORDER BY id")], np.int64)

    def matching_ids(self, selection: Filter) -> np.ndarray:
        """Return the ids, int64, ascending, of the items that a filter lets through. They are shared and read-only."""
        return self.filter_cache.ids(selection)

    def change(self) -> int:
        """The number of the last change: cheap, asked before every search."""
        return int(self._query("SELECT value FROM state WHERE key = 'change'")[0][0])

    def position(self) -> tuple[int, str]:
        """The number of the last change and the name of the index's generation: cheap, asked before every search."""
        keys = "('change', 'generation', 'fingerprint')"
        state = dict(self._query(f"SELECT key, value FROM state WHERE key IN {keys}"))
        self._check_fingerprint(state.get("fingerprint"))
        return int(state["change"]), str(state.get("generation", ""))

    def check_current(self) -> None:
        """Raise `ModelChangedError` if the gallery was given another model since it was opened: cheap."""
        self.position()

    @property
    def was_rebuilt(self) -> bool:
        """Whether a rebuild was ever begun: embeddings that others have kept may be of another model since."""
        return self.model is not None

    def slot(self) -> Slot | None:
        """What the slot of another model's embeddings holds; None where it is empty."""
        return self.staging.slot()

    def set_generation(self, name: str) -> None:
        """From now on this generation counts; it changes nothing of the content."""
        with self._transaction():
            self._check_model()
            self._write_state("generation", name)

    def state(self, key: str) -> str | None:
        """What `set_state` wrote under this key."""
        rows = self._query("SELECT value FROM state WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def set_state(self, key: str, value: str) -> None:
        with self._database.nested_transaction():
            self._write_state(key, value)

    def fact(self, key: str) -> str | None:
        """What `set_fact` kept under this key. It is of the store's model, and goes when that does."""
        with self._of_this_model():
            return self.state(f"fact {key}")

    def set_fact(self, key: str, value: str) -> None:
        with self._transaction_of_this_model():
            self.set_state(f"fact {key}", value)

    def generations(self) -> set[str]:
        """The names of the generations of both models."""
        return {name for (name,) in self._query("SELECT value FROM main.state WHERE key LIKE '%generation'")}

    def changes_since(self, number: int) -> StoreChanges:
        """All that happened after change `number`; since 0 it is the whole gallery, in memory."""
        with self.stream_changes(number) as new:
            blocks = [(np.empty(0, np.int64), np.empty((0, self.dim), np.float32)), *new.blocks]
        ids, vectors = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return StoreChanges(new.number, new.count, new.removed, ids, vectors)

    @contextmanager
    def stream_changes(self, number: int) -> Iterator[ChangeStream]:
        """As `changes_since`, in blocks, of one moment. What is written within is not seen, and its log is kept."""
        with self._of_this_model():
            # From the start on, reading the table in order is quicker than going through the index by change. Either
            # way ids ascend: a later change has never a smaller id.
            since = "items JOIN embeddings ON item = id WHERE change > ? ORDER BY change, id"
            source, values = (since, [number]) if number else ("embeddings ORDER BY item", [])
            removed = self._query("SELECT item FROM removals WHERE change > ?", number) if number else []
            gone = np.array([row[0] for row in removed], np.int64)
            blocks = _blocks_of(self._db, self.path, source, self.dim, *values)
            yield ChangeStream(self.change(), self.count(), gone, blocks)

    def changed_since(self, number: int) -> int:
        """How many items came or went after change `number`, without reading them."""
        parts = (f"(SELECT count(*) FROM {table} WHERE change > ?)" for table in ("items", "removals"))
        return int(self._query(f"SELECT {' + '.join(parts)}", number, number)[0][0])

    def item(self, item_id: int) -> Item:
        return item_from_row(self._one(f"SELECT {ITEM_COLUMNS} FROM items WHERE id = ?", item_id))

    def thumbnail(self, item_id: int) -> Thumbnail:
        media_type, data = self._one("SELECT media_type, data FROM thumbnails WHERE item = ?", item_id)
        return Thumbnail(data, media_type)

    def embedding(self, item_id: int) -> np.ndarray:
        """The item's embedding, float32 [dim]."""
        with self._of_this_model():
            (blob,) = self._one("SELECT embedding FROM embeddings WHERE item = ?", item_id)
        return blob_to_vector(blob, self.dim, self.path)

    def embeddings(self, ids: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Those of the ids that there are, in their order, and their embeddings, float32 [n, dim].

        Who has found items, and then asks for their embeddings, may find that others have removed some meanwhile.
        """
        with self._of_this_model():
            found = dict(self._database.rows_by_id("item, embedding", ids, "embeddings", "item"))
        present = [item_id for item_id in ids if item_id in found]
        rows = [blob_to_vector(found[item_id], self.dim, self.path) for item_id in present]
        return present, np.stack(rows) if rows else np.empty((0, self.dim), np.float32)

    def from_thumbnails(self, ids: Sequence[int]) -> set[int]:
        """Those of the ids whose embedding is of the item's thumbnail, as its image was not at hand."""
        with self._of_this_model():
            rows = list(self._database.rows_by_id("item, from_thumbnail", ids, "embeddings", "item"))
        return {item for item, small in rows if small}

    def items(
        self, offset: int = 0, limit: int = 50, label: str | None = None, selection: Filter = EVERYTHING
    ) -> list[Item]:
        """Items that `selection` lets through, in the order of their ids; with `label`, of that label alone."""
        clause, values = where_clause(label, selection)
        rows = self._query(
            f"SELECT {ITEM_COLUMNS} FROM items {clause} ORDER BY id LIMIT ? OFFSET ?", *values, limit, offset
        )
        return [item_from_row(row) for row in rows]

    def items_by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """The items of these ids that exist."""
        return {row[0]: item_from_row(row) for row in self._database.rows_by_id(ITEM_COLUMNS, ids)}

    def present(self, ids: Sequence[int]) -> list[int]:
        """Those of the ids that are items."""
        return [item for (item,) in self._database.rows_by_id("id", ids)]

    def sample(self, n: int, seed: int | None = None) -> list[Item]:
        """`n` different items from all over the gallery, in random order; all of them where there are fewer."""
        with self._snapshot():
            return sample_items(self._query, n, seed)

    def item_of_content(self, content_sha256: str) -> Item | None:
        rows = self._query(f"SELECT {ITEM_COLUMNS} FROM items WHERE content_sha256 = ?", content_sha256)
        return item_from_row(rows[0]) if rows else None

    def sources_by_content(self) -> dict[str, str]:
        """The source of every item, by the SHA-256 (hex) of its file, in the order of the ids."""
        return dict(self._query("SELECT content_sha256, source FROM items ORDER BY id"))

    def labels(self) -> dict[int, str | None]:
        """The label of every item by its id, in the order of the ids."""
        return dict(self._query("SELECT id, label FROM items ORDER BY id"))

    def ids_by_content(self) -> dict[str, int]:
        """The id of every item by the SHA-256 (hex) of its file."""
        return dict(self._query("SELECT content_sha256, id FROM items"))

    def count(self, label: str | None = None, selection: Filter = EVERYTHING) -> int:
        clause, values = where_clause(label, selection)
        # Of what has no count of its own, the other slot and old files that cannot be written to, it is made.
        if not clause and (kept := self.state("count")) is not None:
            return int(kept)
        return int(self._query(f"SELECT count(*) FROM items {clause}", *values)[0][0])

    def stats(self) -> Stats:
        with self._snapshot():
            items, labels = self._query("SELECT count(*), count(DISTINCT label) FROM items")[0]
            return Stats(items, labels, self.change())

    def problems(self) -> list[str]:
        """What is wrong with the file, in words; nothing where all is well."""
        with self._snapshot():
            return schema.problems(self._db)

    def rows(self) -> Iterator[tuple[Item, np.ndarray, Thumbnail]]:
        """Every item with its embedding, float32 [dim], and thumbnail, of one moment, in the order of the ids."""
        with self._of_this_model():
            cursor = self._db.execute(
                f"SELECT {ITEM_COLUMNS}, embedding, media_type, data FROM items "
                "JOIN embeddings ON embeddings.item = items.id "
                "JOIN thumbnails ON thumbnails.item = items.id ORDER BY items.id"
            )
            for *item, embedding, media_type, data in cursor:
                vector = blob_to_vector(embedding, self.dim, self.path)
                yield item_from_row(tuple(item)), vector, Thumbnail(data, media_type)

    def _one(self, sql: str, item_id: int) -> tuple[Any, ...]:
        rows = self._query(sql, item_id) if 0 < item_id <= MAX_ID else []
        if not rows:
            raise ItemNotFoundError(f"the gallery has no item {item_id}.")
        return rows[0]

    @contextmanager
    def _of_this_model(self) -> Iterator[None]:
        """As `_snapshot`. Raises `ModelChangedError` where the embeddings are of another model now."""
        with self._snapshot():
            self._check_model()
            yield

    def _check_model(self) -> None:
        rows = self._query("SELECT value FROM state WHERE key = 'fingerprint'")
        self._check_fingerprint(rows[0][0] if rows else None)

    def _check_fingerprint(self, present: object) -> None:
        if present != self.fingerprint:
            raise ModelChangedError(
                f"{self.path.parent} was given another model since it was opened. Open it again, with that model."
            )

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """A transaction with the next change number; the number is used up only if something changed."""
        with self._transaction() as db:
            before, change = db.total_changes, self.change() + 1
            yield change
            if db.total_changes > before:
                db.execute("UPDATE state SET value = ? WHERE key = 'change'", (change,))

    @contextmanager
    def _transaction_of_this_model(self) -> Iterator[sqlite3.Connection]:
        with self._transaction() as db:
            self._check_model()
            yield db

    def _write_state(self, key: str, value: str) -> None:
        own = f"other {key}" if self.other else key
        self._db.execute("INSERT OR REPLACE INTO main.state VALUES (?, ?)", (own, value))


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
    found = db.execute(f"SELECT {ITEM_COLUMNS} FROM items WHERE {condition}", (value,)).fetchone()
    return item_from_row(found) if found else None


def _give_key(db: sqlite3.Connection, item_id: int, key: str | None) -> None:
    if key is not None:
        db.execute("INSERT INTO keys VALUES (?, ?)", (item_id, key))


def _blocks_of(db: sqlite3.Connection, path: Path, source: str, dim: int, *values: int) -> Iterator[Block]:
    """Ids and embeddings, a block of them at a time in memory.

    path: of the file; source: what follows FROM, with an order by which ids ascend. Raises `GalleryError` for an
    embedding of another length.
    """
    cursor = db.execute(f"SELECT item, embedding FROM {source}", values)
    while rows := cursor.fetchmany(BLOCK_ROWS):
        yield (
            np.array([item_id for item_id, _ in rows], np.int64),
            blobs_to_vectors([blob for _, blob in rows], dim, path),
        )
