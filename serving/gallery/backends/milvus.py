"""A whole gallery in Milvus, shared by any number of processes on any number of hosts.

NAME                  facts and state; one row names the collection of the items and the model
NAME_<fingerprint>    the items: embedding, label, metadata, thumbnail, ...

Milvus has no transactions. An item's id is derived from its place, so that two processes that add one file write one
row. Each item has its image in its own row, and a search merges the items of one image. A process reads its own writes
at once (Session consistency), and those of others within Milvus's time tick, 0.2 s by default. What a write depends on
is read with Strong consistency, which waits for that tick.

A gallery keeps its model. Images are embedded by another model into a new collection.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from serving.gallery.backends.milvus_client import IDS, PIECE, SCAN, Address, Connection, Row, address_of, quoted
from serving.gallery.backends.milvus_rows import (
    CHANGE,
    FACT,
    ITEM,
    MODEL,
    PICTURE,
    PLACE,
    REMOVED,
    STATE,
    WHOLE,
    expression,
    fact_row,
    folder_text,
    image_fields,
    item_of,
    matches,
    metadata_fields,
    moment,
    number_of,
    place_of,
    thumbnail_of,
)
from serving.gallery.backends.milvus_writes import Writes
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.store import Overview
from serving.gallery.types import (
    MAX_ID,
    UNCHANGED,
    AddResult,
    Item,
    ItemPlace,
    ItemUpdate,
    MetadataChange,
    NewItem,
    PutResult,
    Stats,
    Thumbnail,
    Unchanged,
    check_key,
    item_row,
    key_taken,
    model_json,
    no_item,
    parse_model,
    vector_to_blob,
)
from zoo.data.names import canonical
from zoo.errors import GalleryError, GalleryExistsError, GalleryNotFoundError, ItemConflictError
from zoo.files import LockHeldError
from zoo.models.card import Card

T = TypeVar("T")


class MilvusStore:
    """Items, embeddings and facts of a gallery in Milvus. Safe to use from several threads.

    Its methods are those of `serving.gallery.store.Store`; docstrings here say what differs.
    """

    def __init__(self, connection: Connection, items: str, card: Card, model_ref: str) -> None:
        """Use `open_store` or `create_store`.

        Args:
            connection: The connection to Milvus.
            items: The collection of the items.
            card: The card of the model that embedded them.
            model_ref: The name or path by which `zoo.load` loads the model.
        """
        self.connection, self.collection, self.card, self.model_ref = connection, items, card, model_ref
        self.address, self.facts_name = connection.address.text, connection.address.collection
        self._writing, self._evaluating = threading.Lock(), threading.Lock()
        self._counts: dict[object, Any] = {}

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def evaluation_lock(self) -> Iterator[None]:
        """Hold the lock of evaluations in this process; Milvus has no lock for all processes."""
        if not self._evaluating.acquire(blocking=False):
            raise LockHeldError(self.address)
        try:
            yield
        finally:
            self._evaluating.release()

    def check_current(self) -> None:
        """Raise `BackendError` if Milvus does not answer."""
        _fact_value(self.connection, MODEL)

    def slot(self) -> None:
        """Return None: a gallery in Milvus has the embeddings of one model."""

    # What is read of items

    def item(self, item_id: int) -> Item:
        return item_of(self._row(item_id, ITEM))

    def thumbnail(self, item_id: int) -> Thumbnail:
        return thumbnail_of(self._row(item_id, PICTURE))

    def embedding(self, item_id: int) -> np.ndarray:
        return np.array(self._row(item_id, ("id", "vector"))["vector"], np.float32)

    def embeddings(self, ids: Sequence[int]) -> tuple[list[int], np.ndarray]:
        found = self.by_ids(ids, ("id", "vector"))
        present = [item_id for item_id in ids if item_id in found]
        rows = [found[item_id]["vector"] for item_id in present]
        return present, np.array(rows, np.float32).reshape(-1, self.card.dim)

    def from_thumbnails(self, ids: Sequence[int]) -> set[int]:
        """Return the empty set: only a rebuild embeds thumbnails."""
        return set()

    def items_by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Return the items of those of the ids that exist."""
        return {number: item_of(row) for number, row in self.by_ids(ids, ITEM).items()}

    def item_of_content(self, content_sha256: str) -> Item | None:
        rows = self.connection.rows(self.collection, f"content_sha256 == {quoted(content_sha256)}", ITEM)
        return item_of(min(rows, key=lambda row: int(row["id"]))) if rows else None

    def items(self, offset: int = 0, limit: int = 50, selection: Filter = EVERYTHING) -> list[Item]:
        end = IDS if limit < 0 else offset + limit
        ids: list[int] = []
        for piece in self.scan(("id",), selection, size=min(SCAN, max(100, end))):
            ids += [row["id"] for row in piece]
            if len(ids) >= end:
                break
        found = self.items_by_id(ids[offset:end])
        return [found[item_id] for item_id in ids[offset:end] if item_id in found]

    def sample(self, n: int, seed: int | None = None) -> list[Item]:
        drawing, rows = random.Random(seed), list[Row]()
        for piece in self.scan(ITEM, size=max(1, n), start=drawing.randrange(IDS)):
            rows += piece
            if len(rows) >= n:
                break
        return [item_of(row) for row in drawing.sample(rows, min(n, len(rows)))]

    def labels(self) -> dict[int, str | None]:
        return {row["id"]: row["label"] or None for piece in self.scan(("id", "label")) for row in piece}

    def contents(self) -> Iterator[tuple[str, str | None]]:
        rows = [row for piece in self.scan(("id", "content_sha256", "label")) for row in piece]
        for content, label in sorted((row["content_sha256"], row["label"]) for row in rows):
            yield content, label or None

    def places(self) -> list[ItemPlace]:
        return [place_of(row) for piece in self.scan(PLACE) for row in piece]

    def removed_places(self) -> list[ItemPlace]:
        condition = f'value["kind"] == {quoted(REMOVED)}'
        rows = self.connection.rows(self.facts_name, condition, ("id", "value"), strong=True)
        return [place_of({**row["value"], "id": row["id"]}) for row in rows]

    def add_removed(self, places: Sequence[ItemPlace]) -> None:
        known = self.places()
        keys = {place.key for place in known if place.key is not None}
        files = {(place.source, place.folder) for place in known if place.folder is not None}
        gone = [place for place in places if place.key not in keys and (place.source, place.folder) not in files]
        if gone:
            self.connection.write(self.facts_name, [_removed_row(place) for place in gone])

    def move_removed(self, places: Sequence[ItemPlace]) -> None:
        rows = [{**_removed_row(place), "id": place.id} for place in places]
        self.connection.write(self.facts_name, rows)

    # Images, each of which is as often in the index as items show it: their ids are those of the items

    def contents_of(self, ids: Sequence[int]) -> dict[int, int]:
        return {number: number for number in self.by_ids(ids, ("id",))}

    def items_of(
        self, contents: Sequence[int], selection: Filter = EVERYTHING, exclude: Sequence[int] = ()
    ) -> dict[int, list[Item]]:
        items, excluded = self.items_by_id(contents), set(exclude)
        return {
            number: [item] if number not in excluded and selection.matches(item.label, item.metadata) else []
            for number, item in items.items()
        }

    def content_labels(self) -> dict[int, str | None]:
        return self.labels()

    def ids_by_content(self) -> dict[str, int]:
        return {row["content_sha256"]: row["id"] for piece in self.scan(("id", "content_sha256")) for row in piece}

    def rows(self) -> Iterator[tuple[Item, np.ndarray, Thumbnail]]:
        for piece in self.scan((*ITEM, *PICTURE[1:], "vector"), size=PIECE):
            for row in piece:
                yield item_of(row), np.array(row["vector"], np.float32), thumbnail_of(row)

    def count(self, selection: Filter = EVERYTHING) -> int:
        if not selection.where:
            return self.connection.count(self.collection, expression(selection))
        return int(self._once(repr(selection), lambda: sum(map(len, self.scan(("id",), selection)))))

    def stats(self) -> Stats:
        return Stats(self.count(), self.overview.labels(1)[0], self.change())

    @property
    def overview(self) -> Overview:
        return _MilvusOverview(self._once, self.scan)

    def _row(self, item_id: int, fields: Sequence[str]) -> Row:
        rows = self.by_ids([item_id], fields)
        if not rows:
            raise no_item(item_id)
        return rows[item_id]

    def by_ids(self, ids: Sequence[int], fields: Sequence[str], strong: bool = False) -> dict[int, Row]:
        possible = [item_id for item_id in ids if 0 < item_id <= MAX_ID]
        return self.connection.by_ids(self.collection, possible, fields, strong)

    def scan(
        self, fields: Sequence[str], selection: Filter = EVERYTHING, size: int = SCAN, start: int = 0
    ) -> Iterator[list[Row]]:
        """Return the rows of all items that a filter lets through, in pieces, in the order of their ids."""
        read = tuple(dict.fromkeys((*fields, "label", "metadata"))) if selection.where else fields
        for piece in self.connection.scan(self.collection, expression(selection), read, size, start):
            yield [row for row in piece if not selection.where or matches(selection, row)]

    def _once(self, key: object, work: Callable[[], T]) -> T:
        """Return the result of some work on all items, which is repeated only after a change of the gallery."""
        change = self.change()
        if self._counts.get("change") != change or len(self._counts) > 100:
            self._counts = {"change": change}
        counts = self._counts
        if key not in counts:
            counts[key] = work()
        result: T = counts[key]
        return result

    # What is written

    def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add items, as `Store.add`.

        After a failure a part of the items may be in the gallery. To add them again completes them.

        Raises:
            ItemConflictError: If a key is another image's.
        """
        texts = self._texts(items)
        with self._writing:
            writes = Writes(self.connection, self.collection, items)
            ids = [writes.add(item, text) for item, text in zip(items, texts, strict=True)]
            self._write(writes, items)
        return AddResult(ids, len(writes.fresh))

    def put(self, items: Sequence[NewItem]) -> list[PutResult]:
        """Create the items with these keys, or give them these images and descriptions.

        After a failure a part of the items may be written. To put them again completes them.
        """
        for item in items:
            check_key(item.key or "")
        texts = self._texts(items)
        with self._writing:
            writes = Writes(self.connection, self.collection, items)
            results = [writes.put(item, text) for item, text in zip(items, texts, strict=True)]
            self._write(writes, items)
        return results

    def _texts(self, items: Sequence[NewItem]) -> list[tuple[Any, ...]]:
        """Return the columns of items, which are checked."""
        texts = [item_row(item) for item in items]
        for item in items:
            vector_to_blob(item.embedding, self.card.dim, item.source)
            if item.key is not None:
                check_key(item.key)
        return texts

    def _write(self, writes: Writes, items: Sequence[NewItem]) -> None:
        self.connection.write(self.collection, list(writes.fresh.values()))
        self._rewrite(writes.changes)
        keys = {item.key for item in items if item.key is not None}
        files = {(item.source, item.folder) for item in items if item.folder is not None}
        again = [
            place.id for place in self.removed_places() if place.key in keys or (place.source, place.folder) in files
        ]
        if again:
            self.connection.delete(self.facts_name, again)
        self._next_change()

    def item_of_key(self, key: str) -> Item:
        rows = self.connection.rows(self.collection, f"key == {quoted(canonical(key))}", ITEM) if key else []
        if not rows:
            raise no_item(key)
        return item_of(max(rows, key=lambda row: (row["change"], row["id"])))

    def _with_keys(self, keys: Sequence[str]) -> list[Row]:
        if not keys:
            return []
        condition = f"key in [{', '.join(map(quoted, keys))}]"
        return self.connection.rows(self.collection, condition, ("id", "content_sha256", "key"), strong=True)

    def remove(self, ids: Sequence[int], remember: bool = False) -> int:
        with self._writing:
            rows = self.by_ids(sorted(set(ids)), PLACE, strong=True)
            places = [place_of(row) for row in rows.values() if row["key"] or row["folder"]]
            if remember and places:
                self.connection.write(self.facts_name, [_removed_row(place) for place in places])
            self.connection.delete(self.collection, list(rows))
            self._next_change()
        return len(rows)

    def update(self, updates: Sequence[ItemUpdate]) -> dict[int, ItemConflictError]:
        images = [update.image for update in updates if update.image is not None]
        self._texts(images)
        refused: dict[int, ItemConflictError] = {}
        changes: dict[int, Row] = {}
        with self._writing:
            keys = [update.key for update in updates if isinstance(update.key, str)]
            owners = {row["key"]: row["id"] for row in self._with_keys(keys)}
            for update in updates:
                if isinstance(update.key, str) and owners.setdefault(check_key(update.key), update.item) != update.item:
                    refused[update.item] = key_taken(update.key, owners[update.key])
                else:
                    changes[update.item] = _fields_of(update)
            self._rewrite(changes)
            self._next_change()
        return refused

    def describe(
        self,
        item_id: int,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, Any] | MetadataChange | Unchanged = UNCHANGED,
        key: str | Unchanged | None = UNCHANGED,
    ) -> int:
        """Give an item another label, other metadata, or another key; return the number of this change.

        Milvus replaces whole rows: of two processes that describe one item at the same moment, the later one counts.

        Raises:
            ItemNotFoundError: If there is no such item.
            ItemConflictError: If the key is another item's.
            UsageError: If it cannot be a key.
        """
        label = canonical(label) if isinstance(label, str) else label
        key = check_key(key) if isinstance(key, str) else key
        changed = {} if isinstance(label, Unchanged) else {"label": label or ""}
        changed |= {} if isinstance(key, Unchanged) else {"key": key or ""}
        with self._writing:
            owners = self._with_keys([key]) if isinstance(key, str) else []
            for owner in owners:
                if owner["id"] != item_id:
                    raise key_taken(owner["key"], owner["id"])
            if callable(metadata):
                row = self.by_ids([item_id], ("id", "metadata"), strong=True).get(item_id)
                metadata = UNCHANGED if row is None else metadata(row["metadata"])
            changed |= metadata_fields(metadata)
            if not self._rewrite({item_id: changed}):
                raise no_item(item_id)
            return self._next_change()

    def _rewrite(self, changes: Mapping[int, Row]) -> int:
        """Change fields of the items that exist, and return their number."""
        ids, found = list(changes), 0
        for start in range(0, len(ids), PIECE):
            rows = self.by_ids(ids[start : start + PIECE], WHOLE, strong=True)
            changed = [{**row, **changes[number]} for number, row in rows.items()]
            self.connection.write(self.collection, changed)
            found += len(rows)
        return found

    def _next_change(self) -> int:
        """Take the next change number, and return it."""
        value = _fact_value(self.connection, CHANGE, strong=True) or {"number": 0}
        number = max(moment(), value["number"] + 1)
        self.connection.write(self.facts_name, [fact_row(CHANGE, {"number": number})])
        return number

    # Facts

    def change(self) -> int:
        return int((_fact_value(self.connection, CHANGE) or {"number": 0})["number"])

    def state(self, key: str) -> str | None:
        value = _fact_value(self.connection, STATE, key)
        return None if value is None else str(value["text"])

    def set_state(self, key: str, value: str) -> None:
        self.connection.write(self.facts_name, [fact_row(STATE, {"text": value}, key)])

    def fact(self, key: str) -> str | None:
        value = _fact_value(self.connection, FACT, key)
        return None if value is None else str(value["text"])

    def set_fact(self, key: str, value: str) -> None:
        self.connection.write(self.facts_name, [fact_row(FACT, {"text": value}, key)])


class _MilvusOverview(Overview):
    """Counts over all items of a gallery in Milvus; they are made again after a change."""

    def __init__(
        self, once: Callable[[object, Callable[[], Any]], Any], scan: Callable[..., Iterator[list[Row]]]
    ) -> None:
        self._once, self._scan = once, scan

    def labels(self, limit: int) -> tuple[int, list[tuple[str, int]]]:
        counts = self._once("labels", self._label_counts)
        return len(counts), sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]

    def metadata(self, limit: int) -> tuple[int, list[tuple[str, str | int | float | bool, int]]]:
        counts = self._once("metadata", self._value_counts)
        rows = [(key, value, n) for (key, _, value), n in counts.items()]
        rows.sort(key=lambda row: (-row[2], row[0], isinstance(row[1], str), row[1]))
        return len(rows), rows[:limit]

    def keys(self, limit: int) -> list[str]:
        rows: list[Row] = []
        for piece in self._scan(("id", "metadata"), size=max(1, limit)):
            rows += piece
            if len(rows) >= limit:
                break
        return sorted({key for row in rows[:limit] for key in row["metadata"]})

    def _label_counts(self) -> Counter[str]:
        return Counter(row["label"] for piece in self._scan(("id", "label")) for row in piece if row["label"])

    def _value_counts(self) -> Counter[tuple[str, str, Any]]:
        """Count each value of each key once per item; members of a list count as values, objects and null do not."""
        counts = Counter[tuple[str, str, Any]]()
        for piece in self._scan(("id", "metadata")):
            for row in piece:
                for key, value in row["metadata"].items():
                    values = value if isinstance(value, list) else [value]
                    atoms = {(key, type(one).__name__, one) for one in values if isinstance(one, str | int | float)}
                    counts.update(atoms)
        return counts


def create_store(address: str, card: Card, model_ref: str) -> MilvusStore:
    """Make an empty gallery.

    Raises:
        GalleryExistsError: If the collection exists.
    """
    connection = Connection(address_of(address))
    try:
        if connection.has(connection.address.collection):
            raise GalleryExistsError(f"{address} exists already; a new gallery needs a collection of its own.")
        name = _items_name(connection.address, card)
        connection.create_items(name, card.dim)
        connection.create_facts()
        model = {"collection": name, "model": model_json(card, model_ref)}
        connection.write(connection.address.collection, [fact_row(MODEL, model), fact_row(CHANGE, {"number": 0})])
        return MilvusStore(connection, name, card, model_ref)
    except BaseException:
        connection.close()
        raise


def open_store(address: str) -> MilvusStore:
    """Open a gallery.

    Raises:
        GalleryNotFoundError: The collection does not exist.
        GalleryError: If the collection is not a gallery's.
    """
    connection = _connect_existing(address)
    try:
        value = present_model(connection)
        if not set(WHOLE) <= connection.fields(value["collection"]):
            message = (
                f"{address} was made by another version of dml-zoo. Index the images again, into a new collection."
            )
            raise GalleryError(message, code="other-schema")
        connection.load(value["collection"])
        return MilvusStore(connection, value["collection"], *parse_model(value["model"], address))
    except BaseException:
        connection.close()
        raise


def exists(address: str) -> bool:
    """Return whether Milvus has a collection at the address."""
    try:
        connection = _connect_existing(address)
    except GalleryNotFoundError:
        return False
    with closing(connection):
        return connection.has(connection.address.collection)


def model_at(address: str) -> tuple[Card, str]:
    """Return the card of the gallery's model, and the reference by which it is loaded."""
    with closing(_connect_existing(address)) as connection:
        return parse_model(present_model(connection)["model"], address)


def _connect_existing(text: str) -> Connection:
    """Connect to Milvus; an embedded one is not created.

    Raises:
        GalleryNotFoundError: The file of an embedded Milvus does not exist.
    """
    address = address_of(text)
    if address.embedded and not Path(address.uri).exists():
        raise _not_found(address)
    return Connection(address)


def drop(address: str) -> None:
    """Delete a gallery."""
    with closing(Connection(address_of(address))) as connection:
        for name in (present_model(connection)["collection"], connection.address.collection):
            connection.drop(name)


def _items_name(address: Address, card: Card) -> str:
    """Return the name of the collection of items that a model embeds."""
    return f"{address.collection}_{card.fingerprint[:16]}"


def _fact_value(connection: Connection, kind: str, key: str = "", strong: bool = False) -> Row | None:
    """Return the value of a fact, or None; strong: as the last write of any process left it."""
    number = number_of(kind, key)
    rows = connection.by_ids(connection.address.collection, [number], ("id", "value"), strong)
    return rows[number]["value"] if number in rows else None


def present_model(connection: Connection) -> Row:
    """Return the fact that names the collection of the items and their model.

    Raises:
        GalleryNotFoundError: If there is no gallery.
        GalleryError: If the collection is not a gallery's (code "not-a-gallery").
    """
    address = connection.address
    if not connection.has(address.collection):
        raise _not_found(address)
    connection.load(address.collection)
    value = _fact_value(connection, MODEL, strong=True) if "value" in connection.fields(address.collection) else None
    if value is None:
        raise GalleryError(f"the collection at {address.text} is not a gallery; name another.", code="not-a-gallery")
    return value


def _not_found(address: Address) -> GalleryNotFoundError:
    return GalleryNotFoundError(
        f"there is no gallery at {address.text}. Make one with: zoo index MODEL DIR --out {address.text}"
    )


def _removed_row(place: ItemPlace) -> Row:
    """Return the fact that the item of a place was removed."""
    values = {"source": place.source, "key": place.key or "", "folder": folder_text(place.folder)}
    number = number_of(REMOVED, *values.values())
    value = {"kind": REMOVED, **values, "content_sha256": place.content_sha256}
    return {**fact_row(REMOVED, value), "id": number}


def _fields_of(update: ItemUpdate) -> Row:
    """Return the fields that an update changes."""
    fields = {"source": update.source, "label": update.label or "", **metadata_fields(update.metadata)}
    if not isinstance(update.folder, Unchanged):
        fields["folder"] = folder_text(update.folder)
    if not isinstance(update.key, Unchanged):
        fields["key"] = update.key or ""
    if update.image is not None:
        fields |= {**image_fields(update.image), "change": moment()}
    return fields
