"""The SQLite store of a gallery: items, embeddings and thumbnails.

Each transaction that changes something takes the next change number. Items and removals carry it, so that an index in
any process can ask for the changes since the number it has seen. The store also names the index generation in use.

An open store belongs to the model it was opened with. After a swap of models (serving.gallery.staging), operations on
embeddings raise `ModelChangedError`; items, labels and thumbnails can still be read and written.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery import schema
from serving.gallery.database import Database
from serving.gallery.filters import EVERYTHING, Filter, where_clause
from serving.gallery.places import NewRow, add_item, change_key, delete_items, put_item, update_item
from serving.gallery.staging import STAGED_VIEWS, Slot, Staging
from serving.gallery.types import (
    ITEM_COLUMNS,
    LISTED,
    MAX_ALSO,
    MAX_ID,
    NO_PICTURE,
    UNCHANGED,
    AddResult,
    Block,
    Item,
    ItemPlace,
    ItemUpdate,
    MetadataChange,
    NewItem,
    PutResult,
    Stats,
    StoreChanges,
    Thumbnail,
    Unchanged,
    blob_to_vector,
    blobs_to_vectors,
    check_key,
    is_folder_uri,
    item_from_row,
    item_row,
    metadata_json,
    no_item,
    parse_model,
    read_model,
    thumbnail_hash,
)
from zoo.data.names import canonical
from zoo.errors import GalleryError, ItemConflictError, ZooError
from zoo.files import locked
from zoo.models.card import Card

MODEL = "model.json"
"""File of the model, beside the store, until a rebuild begins."""

CACHE_BYTES = 64 * 2**20
CACHE_FILTERS = 64
BLOCK_ROWS = 10_000
"""Embeddings that are read at a time."""

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
"""Objects and nulls have no atom. Each member of a list counts once per item, as for a filter."""

MANY_ITEMS = 1000
"""Items of some images, beside one of each, above which only the best described of each are read."""

_BEST_DESCRIBED = f"""
SELECT content, {ITEM_COLUMNS} FROM (
  SELECT *, row_number() OVER (
    PARTITION BY content ORDER BY key IS NULL, label IS NULL, metadata = '{{{{}}}}', id
  ) AS rank FROM items WHERE {{where}}
) AS items WHERE rank <= {MAX_ALSO + 1}
"""

_KEYS = """
SELECT DISTINCT one.key FROM (SELECT metadata FROM items ORDER BY id LIMIT ?) AS first, json_each(first.metadata) AS one
ORDER BY one.key
"""


class Store:
    """One open SQLite file. Safe to use from several threads; several processes may have it open at once.

    Attributes:
        dim: Length of the embeddings.
        fingerprint: Their model.
        model: Text of its model.json; None if no rebuild was ever begun, and model.json itself counts.
        overview, staging: Parts of the store.
    """

    def __init__(self, path: Path, other: bool = False) -> None:
        """Open an existing store.

        Args:
            path: Its file.
            other: Whether to read the second slot of embeddings as if it were the first; items that its model has not
                embedded do not exist then.

        Raises:
            GalleryError: If the file is missing, damaged or of another schema.
        """
        self.path, self.other = path, other
        self.database = Database(path, STAGED_VIEWS if other else "")
        self._query = self.database.query
        self.overview, self.staging = Overview(self.database), Staging(self.database)
        self._filter_cache = _FilterCache()
        state = self.database.initial_state
        try:
            if self.database.fingerprint is None:
                raise GalleryError(f"{path} holds no embeddings of another model.", code="no-other-model")
            if (metric := state["metric"]) != schema.METRIC:
                message = f"{path} is for {metric} similarity; this version of dml-zoo has {schema.METRIC}."
                raise GalleryError(message, code="unknown-name")
            schema.check_state(state, path)
        except BaseException:
            self.database.close()
            raise
        self.dim, self.fingerprint = int(state["dim"]), self.database.fingerprint
        self.model = str(state["model"]) if "model" in state else None

    def reopen(self) -> Store:
        """Open the same store again, with the model that it has now."""
        return Store(self.path, self.other)

    def close(self) -> None:
        self.database.close()

    # Changes

    def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add all items in one transaction, or none.

        An item whose place has one keeps the values that are there. So does one without a place whose image is there.

        Raises:
            ItemConflictError: If a key is another image's.
        """
        rows = [NewRow.of(item, self.dim) for item in items]
        with self._numbered_change(check_model=True) as change:
            results = [add_item(self.database.db, row, change) for row in rows]
        return AddResult([item_id for item_id, _ in results], sum(new for _, new in results))

    def put(self, items: Sequence[NewItem]) -> list[PutResult]:
        """Create the items with these keys, or give them these images and descriptions, in order; one transaction."""
        rows = [NewRow.of(item, self.dim) for item in items]
        with self._numbered_change(check_model=True) as change:
            return [put_item(self.database.db, row, change) for row in rows]

    def update(self, updates: Sequence[ItemUpdate]) -> dict[int, ItemConflictError]:
        """Give items other places, descriptions and images in one transaction.

        Return the errors of those whose new key is another item's, by id; these stay unchanged.
        """
        images = [None if update.image is None else NewRow.of(update.image, self.dim) for update in updates]
        refused: dict[int, ItemConflictError] = {}
        with self._numbered_change(check_model=any(images)) as change:
            for update, image in zip(updates, images, strict=True):
                try:
                    update_item(self.database.db, update, image, change)
                except ItemConflictError as error:
                    refused[update.item] = error
        return refused

    def remove(self, ids: Sequence[int], remember: bool = False) -> int:
        """Remove items in one transaction; return how many of the ids existed.

        remember: note their places, so that an indexed folder does not bring them back.
        """
        possible = sorted({item_id for item_id in ids if 0 < item_id <= MAX_ID})
        with self._numbered_change() as change:
            return delete_items(self.database.db, possible, change, remember)

    def describe(
        self,
        item_id: int,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, Any] | MetadataChange | Unchanged = UNCHANGED,
        key: str | Unchanged | None = UNCHANGED,
    ) -> int:
        """Give an item another label, other metadata, or another key; return the number of this change.

        Only the given values are written, so that concurrent changes of the others are kept. metadata may be a function
        that returns them from those that the item has.

        Raises:
            ItemNotFoundError: If there is no such item.
            ItemConflictError: If the key is another item's.
            UsageError: If it cannot be a key.
        """
        if isinstance(key, str):
            key = check_key(key)
        label = canonical(label) if isinstance(label, str) else label
        with self._numbered_change() as change:
            if callable(metadata):
                metadata = metadata(self.item(item_id).metadata)
            text = metadata if isinstance(metadata, Unchanged) else metadata_json(metadata)
            values = {"label": label, "metadata": text}
            values = {column: value for column, value in values.items() if value is not UNCHANGED}
            columns = ", ".join(f"{column} = ?" for column in values) or "id = id"
            sql = f"UPDATE items SET {columns} WHERE id = ?"
            if not self.database.db.execute(sql, (*values.values(), min(item_id, MAX_ID))).rowcount:
                raise no_item(item_id)
            if not isinstance(key, Unchanged):
                change_key(self.database.db, item_id, key)
        return change

    @contextmanager
    def _numbered_change(self, check_model: bool = False) -> Iterator[int]:
        """Yield the next change number in a transaction; it is used up only if something changes."""
        with self.database.transaction(check_model) as db:
            before, change = db.total_changes, self.change() + 1
            yield change
            if db.total_changes > before:
                db.execute("UPDATE state SET value = ? WHERE key = 'change'", (change,))

    # State

    def change(self) -> int:
        """Return the number of the last change. This is cheap."""
        return int(self._query("SELECT value FROM state WHERE key = 'change'")[0][0])

    def position(self) -> tuple[int, str]:
        """Return the number of the last change and the name of the index generation. This is cheap.

        Raises:
            ModelChangedError: If the embeddings are of another model now.
        """
        keys = "('change', 'generation', 'fingerprint')"
        state: dict[str, Any] = dict(self._query(f"SELECT key, value FROM state WHERE key IN {keys}"))
        self.database.check_fingerprint(state.get("fingerprint"))
        return int(state["change"]), str(state.get("generation", ""))

    def check_current(self) -> None:
        """Raise `ModelChangedError` if the gallery was given another model since it was opened. This is cheap."""
        self.database.check_model()

    def slot(self) -> Slot | None:
        """Return the facts of the embeddings by another model, None if the store has only one model."""
        return self.staging.slot()

    def generations(self) -> set[str]:
        """Return the names of the index generations of both models."""
        return {name for (name,) in self._query("SELECT value FROM main.state WHERE key LIKE '%generation'")}

    def discard_other(self) -> None:
        """Delete the embeddings by another model."""
        self.staging.discard()

    def evaluation_lock(self) -> AbstractContextManager[None]:
        """Return the lock of evaluations in all processes; entering it while it is held raises `LockHeldError`."""
        return locked(self.path.with_name("model.json"), wait=False)

    def set_generation(self, name: str, facts_sha256: str) -> None:
        """Put an index generation into use, by its name and the hash of its facts; the content stays the same."""
        with self.database.transaction(check_model=True):
            self.set_state("generation", name)
            self.set_state("generation sha256", facts_sha256)

    def state(self, key: str) -> str | None:
        """Return a value that `set_state` wrote."""
        rows = self._query("SELECT value FROM state WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def set_state(self, key: str, value: str) -> None:
        with self.database.transaction() as db:
            own_key = f"other {key}" if self.other else key
            db.execute("INSERT OR REPLACE INTO main.state VALUES (?, ?)", (own_key, value))

    def fact(self, key: str) -> str | None:
        """Return a value that `set_fact` wrote. It belongs to the model of the store, and is swapped with it."""
        with self.database.snapshot(check_model=True):
            return self.state(f"fact {key}")

    def set_fact(self, key: str, value: str) -> None:
        with self.database.transaction(check_model=True):
            self.set_state(f"fact {key}", value)

    # Items

    def item(self, item_id: int) -> Item:
        """Return one item.

        Raises:
            ItemNotFoundError: If there is no such item; also by `thumbnail` and `embedding`.
        """
        return item_from_row(self._row(f"SELECT {ITEM_COLUMNS} FROM items WHERE id = ?", item_id))

    def items(self, offset: int = 0, limit: int = 50, selection: Filter = EVERYTHING) -> list[Item]:
        """Return a page of the items that a filter lets through, in the order of their ids."""
        clause, values = where_clause(selection)
        sql = f"SELECT {ITEM_COLUMNS} FROM items {clause} ORDER BY id LIMIT ? OFFSET ?"
        return [item_from_row(row) for row in self._query(sql, *values, limit, offset)]

    def items_by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Return those of the items that exist."""
        return {row[0]: item_from_row(row) for row in self.database.rows_by_id(ITEM_COLUMNS, ids)}

    def item_of_content(self, content_sha256: str) -> Item | None:
        """Return the first item that shows an image."""
        condition = "content = (SELECT id FROM contents WHERE content_sha256 = ?)"
        rows = self._query(f"SELECT {ITEM_COLUMNS} FROM items WHERE {condition} ORDER BY id LIMIT 1", content_sha256)
        return item_from_row(rows[0]) if rows else None

    def item_of_key(self, key: str) -> Item:
        """Return the item with this key, or raise `ItemNotFoundError`."""
        rows = self._query(f"SELECT {ITEM_COLUMNS} FROM items WHERE key = ?", canonical(key))
        if not rows:
            raise no_item(key)
        return item_from_row(rows[0])

    def items_since(self, change: int) -> list[int]:
        """Return the ids of the items that got their images after a change."""
        return [item for (item,) in self._query("SELECT id FROM items WHERE change > ? ORDER BY id", change)]

    def sample(self, n: int, seed: int | None = None) -> list[Item]:
        """Return `n` different items from all over the gallery in random order; all of them if there are fewer."""
        with self.database.snapshot():
            first, last = self._query("SELECT min(id), max(id) FROM items")[0]
            if first is None:
                return []
            starts = random.Random(seed).sample(range(first, last + 1), min(2 * n, last + 1 - first))
            # The next item at or after a random id: fast at any size, in spite of gaps that removals leave.
            sql = f"SELECT {ITEM_COLUMNS} FROM items WHERE id >= ? ORDER BY id LIMIT 1"
            rows = [self._query(sql, start)[0] for start in starts]
            # Several starts may lead to one item; the first items make up the number.
            rows += self._query(f"SELECT {ITEM_COLUMNS} FROM items ORDER BY id LIMIT ?", n)
        return [item_from_row(row) for row in {row[0]: row for row in rows}.values()][:n]

    def labels(self) -> dict[int, str | None]:
        """Return the label of each item by id, in the order of the ids."""
        return dict(self._query("SELECT id, label FROM items ORDER BY id"))

    def places(self) -> list[ItemPlace]:
        """Return the places of all items, in the order of their ids."""
        joined = "items JOIN contents ON contents.id = content"
        return self._places(f"SELECT items.id, source, key, folder, content_sha256 FROM {joined} ORDER BY items.id")

    def removed_places(self) -> list[ItemPlace]:
        """Return the places whose items were removed for good; their ids are not those of items."""
        return self._places("SELECT rowid, source, key, folder, content_sha256 FROM removed_places")

    def note_removed(self, places: Sequence[ItemPlace]) -> None:
        """Note that items were removed for good from these places. Their ids do not matter."""
        values = [(place.source, place.key, place.folder, place.content_sha256) for place in places]
        with self.database.transaction() as db:
            db.executemany("INSERT INTO removed_places VALUES (?, ?, ?, ?)", values)

    def move_removed(self, places: Sequence[ItemPlace]) -> None:
        """Note where the files of removed places are now."""
        values = [(place.source, place.folder, place.content_sha256, place.id) for place in places]
        with self.database.transaction() as db:
            sql = "UPDATE removed_places SET source = ?, folder = ?, content_sha256 = ? WHERE rowid = ?"
            db.executemany(sql, values)

    def _places(self, sql: str) -> list[ItemPlace]:
        places = [ItemPlace(*row) for row in self._query(sql)]
        if not all(
            isinstance(place.source, str) and "\0" not in place.source and is_folder_uri(place.folder)
            for place in places
        ):
            raise GalleryError(f"{self.path} is damaged: a place is of another type.", code="damaged-gallery")
        return places

    def contents(self) -> Iterator[tuple[str, str | None]]:
        """Yield the SHA-256 (hex) of each item's image and its label, of one moment, in the order of the hashes."""
        joined = "items JOIN contents ON contents.id = content"
        with self.database.snapshot(check_model=True):
            yield from self.database.db.execute(
                f"SELECT content_sha256, label FROM {joined} ORDER BY content_sha256, label"
            )

    # Images, as the index knows them

    def contents_of(self, ids: Sequence[int]) -> dict[int, int]:
        """Return the image of those of the items that exist."""
        return dict(self.database.rows_by_id("id, content", ids))

    def items_of(
        self, contents: Sequence[int], selection: Filter = EVERYTHING, exclude: Sequence[int] = ()
    ) -> dict[int, list[Item]]:
        """Return the items that show each of those images that exist, the best described ones, at most `MAX_ALSO` + 1.

        Only items that a filter lets through and that are not excluded are among them.
        """
        condition, values = selection.sql()
        conditions = [f"content IN {LISTED}", *([f"id NOT IN {LISTED}"] if exclude else []), condition]
        where, wanted = " AND ".join(conditions), json.dumps(list(contents))
        values = [wanted, *([json.dumps(list(exclude))] if exclude else []), *values]
        most = len(contents) + MANY_ITEMS
        rows = self._query(f"SELECT content, {ITEM_COLUMNS} FROM items WHERE {where} LIMIT {most}", *values)
        items: dict[int, list[Item]] = {}
        if len(rows) == most or len({row[0] for row in rows}) < len(contents):
            with self.database.snapshot():
                rows = self._query(_BEST_DESCRIBED.format(where=where), *values)
                present = self._query(f"SELECT id FROM contents WHERE id IN {LISTED}", wanted)
            items = {content: [] for (content,) in present}
        for content, *row in rows:
            items.setdefault(content, []).append(item_from_row(row))
        for shown in items.values():
            if len(shown) > 1:
                shown.sort(key=lambda item: item.rank)
        return {content: shown[: MAX_ALSO + 1] for content, shown in items.items()}

    def shared_contents(self) -> list[int]:
        """Return the images that several items show."""
        rows = self._query("SELECT content FROM items GROUP BY content HAVING count(*) > 1 ORDER BY content")
        return [content for (content,) in rows]

    def content_labels(self) -> dict[int, str | None]:
        """Return the label of each image, None for one whose items have several."""
        return dict(
            self._query(
                "SELECT content, CASE WHEN count(DISTINCT label) = 1 THEN max(label) END FROM items "
                "GROUP BY content ORDER BY content"
            )
        )

    def ids_by_content(self) -> dict[str, int]:
        """Return each image by the SHA-256 (hex) of its file."""
        return dict(self._query("SELECT content_sha256, id FROM contents"))

    def matching_contents(self, selection: Filter, position: tuple[int, str]) -> np.ndarray:
        """Return the images, int64, ascending, of the items that a filter lets through. They are shared, read-only.

        position: that of the store (`position`) before the call.
        """
        condition, values = selection.sql()
        key = json.dumps([condition, values])
        ids = self._filter_cache.get(key, position)
        if ids is None:
            rows = self._query(f"SELECT DISTINCT content FROM items WHERE {condition} ORDER BY content", *values)
            ids = np.array([row[0] for row in rows], np.int64)
            ids.flags.writeable = False
            # The position is older than the ids, or the same: they are never used for longer than they are right.
            self._filter_cache.put(key, position, ids)
        return ids

    def count(self, selection: Filter = EVERYTHING) -> int:
        """Return the number of items that a filter lets through."""
        clause, values = where_clause(selection)
        # The second slot has no stored count.
        if not clause and (stored := self.state("count")) is not None:
            return int(stored)
        return int(self._query(f"SELECT count(*) FROM items {clause}", *values)[0][0])

    def stats(self) -> Stats:
        with self.database.snapshot():
            items, labels = self._query("SELECT count(*), count(DISTINCT label) FROM items")[0]
            return Stats(items, labels, self.change())

    def thumbnail(self, item_id: int) -> Thumbnail:
        media_type, data, width, height = self._row(
            "SELECT media_type, data, width, height FROM items JOIN thumbnails USING (content) "
            "LEFT JOIN pictures USING (content) WHERE id = ?",
            item_id,
        )
        return Thumbnail(data, media_type, (width, height) if width and height else None)

    # Embeddings

    def embedding(self, item_id: int) -> np.ndarray:
        """Return the item's embedding, float32 [dim]."""
        with self.database.snapshot(check_model=True):
            (blob,) = self._row("SELECT embedding FROM items JOIN embeddings USING (content) WHERE id = ?", item_id)
        return blob_to_vector(blob, self.dim, self.path)

    def embeddings(self, ids: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Return those of the ids that exist, in the given order, and their embeddings, float32 [n, dim]."""
        return self._vectors("items JOIN embeddings USING (content)", "id", ids)

    def content_embeddings(self, contents: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Return those of the images that exist, in the given order, and their embeddings, float32 [n, dim]."""
        return self._vectors("embeddings", "content", contents)

    def _vectors(self, table: str, key: str, ids: Sequence[int]) -> tuple[list[int], np.ndarray]:
        with self.database.snapshot(check_model=True):
            blobs: dict[int, bytes] = dict(self.database.rows_by_id(f"{key}, embedding", ids, table, key))
        present = [number for number in ids if number in blobs]
        return present, blobs_to_vectors([blobs[number] for number in present], self.dim, self.path)

    def from_thumbnails(self, ids: Sequence[int]) -> set[int]:
        """Return those of the ids whose embedding was made of the thumbnail, because the image was not available."""
        with self.database.snapshot(check_model=True):
            table = "items JOIN embeddings USING (content)"
            rows = self.database.rows_by_id("id, from_thumbnail", ids, table)
        return {item for item, from_thumbnail in rows if from_thumbnail}

    def rows(self) -> Iterator[tuple[Item, np.ndarray, Thumbnail]]:
        """Yield each item with its embedding, float32 [dim], and thumbnail, of one moment, in the order of the ids."""
        with self.database.snapshot(check_model=True):
            cursor = self.database.db.execute(
                f"SELECT embedding, media_type, data, {ITEM_COLUMNS} FROM items "
                "JOIN embeddings USING (content) JOIN thumbnails USING (content) ORDER BY items.id"
            )
            for blob, media_type, data, *item in cursor:
                yield item_from_row(item), blob_to_vector(blob, self.dim, self.path), Thumbnail(data, media_type)

    @contextmanager
    def stream_changes(self, number: int) -> Iterator[StoreChanges]:
        """Read all changes after change `number` to images as of one moment, embeddings in blocks; from 0 on, all.

        Later writes are not seen inside, and SQLite keeps its log until the end.
        """
        with self.database.snapshot(check_model=True):
            # From 0 on, reading the table in order is faster than through the index by change. Either way ids ascend,
            # because a later change never has a smaller id.
            since = "contents JOIN embeddings ON content = id WHERE change > ? ORDER BY change, id"
            source, values = (since, [number]) if number else ("embeddings ORDER BY content", [])
            removed = self._query("SELECT content FROM removals WHERE change > ?", number) if number else []
            gone = np.array([row[0] for row in removed], np.int64)
            yield StoreChanges(self.change(), self._count_contents(), gone, self._blocks(source, values))

    def _count_contents(self) -> int:
        if (stored := self.state("contents")) is not None:
            return int(stored)
        return int(self._query("SELECT count(*) FROM contents")[0][0])  # the second slot has no stored count

    def _blocks(self, source: str, values: Sequence[int]) -> Iterator[Block]:
        cursor = self.database.db.execute(f"SELECT content, embedding FROM {source}", values)
        while rows := cursor.fetchmany(BLOCK_ROWS):
            ids, blobs = zip(*rows, strict=True)
            yield np.array(ids, np.int64), blobs_to_vectors(blobs, self.dim, self.path)

    def count_changes(self, number: int) -> int:
        """Return how many images were added or removed after change `number`, without reading them."""
        parts = (f"(SELECT count(*) FROM {table} WHERE change > ?)" for table in ("contents", "removals"))
        return int(self._query(f"SELECT {' + '.join(parts)}", number, number)[0][0])

    def damaged_items(self) -> Iterator[tuple[int, str]]:
        """Yield the id of each item whose values, key or picture are not what `add` would accept, and what is wrong."""
        columns = f"{ITEM_COLUMNS}, media_type, data, hash"
        tables = "items JOIN thumbnails USING (content) LEFT JOIN pictures USING (content)"
        with self.database.snapshot():
            for *row, media_type, data, picture in self.database.db.execute(f"SELECT {columns} FROM {tables}"):
                try:
                    item = item_from_row(row)
                    item_row(item)
                    if item.key is not None:
                        check_key(item.key)
                    thumbnail = Thumbnail(data, media_type)
                except ZooError as error:
                    yield row[0], str(error)
                    continue
                if thumbnail == NO_PICTURE:
                    continue
                actual = thumbnail_hash(thumbnail)
                if actual is None:
                    yield row[0], "its thumbnail cannot be decoded"
                elif picture not in (None, actual):
                    yield row[0], "its thumbnail is another picture than the one of its perceptual hash"

    def problems(self) -> list[str]:
        """Return what is wrong with the file, in words."""
        with self.database.snapshot():
            return schema.problems(self.database.db)

    def _row(self, sql: str, item_id: int) -> tuple[Any, ...]:
        rows = self._query(sql, item_id) if 0 < item_id <= MAX_ID else []
        if not rows:
            raise no_item(item_id)
        return rows[0]


def store_model(store: Store) -> tuple[Card, str]:
    """Return the card of the model of an open store, and the name or path by which it is loaded."""
    return read_model(store.path.parent / MODEL) if store.model is None else parse_model(store.model, store.path)


class Overview:
    """Counts over all items of a gallery."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def labels(self, limit: int) -> tuple[int, list[tuple[str, int]]]:
        """Return the number of labels, and the `limit` most frequent ones with their numbers of items."""
        rows = self._database.query(_LABELS, limit)
        return (rows[0][2] if rows else 0), [(label, items) for label, items, _ in rows]

    def metadata(self, limit: int) -> tuple[int, list[tuple[str, str | int | float | bool, int]]]:
        """Return the number of values, and key, value and number of items of the `limit` most frequent ones."""
        rows = self._database.query(_METADATA, limit)
        values = [(key, kind == "true" if kind in ("true", "false") else atom, n) for key, atom, kind, n, _ in rows]
        # Older stores may hold integers that SQLite reads as infinity, which JSON lacks.
        return (rows[0][4] if rows else 0), [row for row in values if row[1] not in (math.inf, -math.inf)]

    def keys(self, limit: int) -> list[str]:
        """Return the keys of the metadata of the first `limit` items, in order."""
        return [key for (key,) in self._database.query(_KEYS, limit)]


class _FilterCache:
    """Ids that filters let through at one position of the store. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._position: tuple[int, str] | None = None
        self._ids: dict[str, np.ndarray] = {}

    def get(self, key: str, position: tuple[int, str]) -> np.ndarray | None:
        with self._lock:
            return self._ids.get(key) if position == self._position else None

    def put(self, key: str, position: tuple[int, str], ids: np.ndarray) -> None:
        with self._lock:
            size = sum(len(key) + ids.nbytes for key, ids in (*self._ids.items(), (key, ids)))
            if position != self._position or len(self._ids) >= CACHE_FILTERS or size > CACHE_BYTES:
                self._ids.clear()
                self._position = position
            if len(key) + ids.nbytes <= CACHE_BYTES:
                self._ids[key] = ids
