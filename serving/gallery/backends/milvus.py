"""A whole gallery in Milvus, shared by any number of processes on any number of hosts.

NAME                  facts and state; one row names the collection of the items and the model
NAME_<fingerprint>    the items: embedding, label, metadata, thumbnail, ...

Milvus has no transactions. An item's id is derived from the hash of its image, so that two processes that add one image
write one row. A process reads its own writes at once (Session consistency), and those of others within Milvus's time
tick, 0.2 s by default. What a write depends on is read with Strong consistency, which waits for that tick.

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
    STATE,
    WHOLE,
    expression,
    fact_row,
    ids_of,
    item_of,
    matches,
    metadata_fields,
    moment,
    new_row,
    number_of,
    thumbnail_of,
)
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.store import Overview
from serving.gallery.types import (
    MAX_ID,
    UNCHANGED,
    AddResult,
    Item,
    ItemUpdate,
    NewItem,
    PutResult,
    PutStatus,
    Stats,
    Thumbnail,
    Unchanged,
    check_key,
    equal_metadata,
    image_taken,
    item_row,
    key_taken,
    model_json,
    no_item,
    parse_model,
    vector_to_blob,
)
from zoo.data.names import canonical
from zoo.errors import GalleryError, GalleryExistsError, GalleryNotFoundError
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
        rows = self.by_ids(ids_of(content_sha256), ITEM).values()
        return next((item_of(row) for row in rows if row["content_sha256"] == content_sha256), None)

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

    def ids_by_content(self) -> dict[str, int]:
        return {row["content_sha256"]: row["id"] for piece in self.scan(("id", "content_sha256")) for row in piece}

    def contents(self) -> Iterator[tuple[str, str | None]]:
        rows = [row for piece in self.scan(("id", "content_sha256", "label")) for row in piece]
        yield from sorted((row["content_sha256"], row["label"] or None) for row in rows)

    def sources_by_content(self) -> dict[str, str]:
        fields = ("id", "content_sha256", "source")
        return {row["content_sha256"]: row["source"] for piece in self.scan(fields) for row in piece}

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
        """Add items; images that the gallery has keep the ids of their items.

        After a failure a part of the items may be in the gallery. To add them again completes them.

        Raises:
            ItemConflictError: If a key is another image's, or an image is there under another key.
        """
        texts = [item_row(item) for item in items]
        for item in items:
            vector_to_blob(item.embedding, self.card.dim, item.source)
        with self._writing:
            ids, fresh, keyed = self._placed(items, texts)
            self.connection.write(self.collection, fresh)
            self._rewrite(keyed)
            self._next_change()
        return AddResult(ids, len(fresh))

    def _placed(
        self, items: Sequence[NewItem], texts: Sequence[tuple[Any, ...]]
    ) -> tuple[list[int], list[Row], dict[int, Row]]:
        """Return the id of each item, the rows of the new ones, and the keys that existing items get."""
        candidates = [number for item in items for number in ids_of(item.content_sha256)]
        by_id = self.by_ids(candidates, ("id", "content_sha256", "key"), strong=True)
        by_key = {row["key"]: row for row in self._with_keys([check_key(item.key) for item in items if item.key])}
        by_content = {row["content_sha256"]: row for row in by_id.values()}
        ids, fresh, keyed, change = list[int](), list[Row](), dict[int, Row](), moment()
        for item, text in zip(items, texts, strict=True):
            content = item.content_sha256
            if item.key and by_key.get(item.key, {"content_sha256": content})["content_sha256"] != content:
                raise key_taken(item.key, by_key[item.key]["id"])
            row = by_content.get(content)
            if row is None:
                row = by_content[content] = self._new_row(item, text, by_id, change)
                fresh.append(row)
            elif item.key not in (None, row["key"]):
                if row["key"]:
                    raise image_taken(row["id"], row["key"])
                row["key"] = item.key
                keyed |= {row["id"]: {"key": item.key}} if len(row) == 3 else {}
            if item.key:
                by_key[item.key] = row
            ids.append(row["id"])
        return ids, fresh, keyed

    def put(self, items: Sequence[NewItem]) -> list[PutResult]:
        """Create or replace the items with these keys.

        The new row of a replaced item is written before the former one is deleted: for a moment, and after a failure
        until the next put of the key, searches find both.
        """
        texts = [item_row(item) for item in items]
        for item in items:
            check_key(item.key or "")
            vector_to_blob(item.embedding, self.card.dim, item.source)
        results: list[PutResult] = []
        with self._writing:
            for start, end in _without_repeats(items):
                results += self._put(items[start:end], texts[start:end])
            self._next_change()
        return results

    def _put(self, items: Sequence[NewItem], texts: Sequence[tuple[Any, ...]]) -> list[PutResult]:
        """Put items no two of which have a key or an image in common."""
        candidates = [number for item in items for number in ids_of(item.content_sha256)]
        by_id = self.by_ids(candidates, ITEM, strong=True)
        by_content = {row["content_sha256"]: row for row in by_id.values()}
        owners: dict[str, list[int]] = {}
        for row in self._with_keys([item.key for item in items if item.key]):
            owners.setdefault(row["key"], []).append(row["id"])
        results, fresh, changes, gone = list[PutResult](), list[Row](), dict[int, Row](), list[int]()
        for item, text in zip(items, texts, strict=True):
            key, known = str(item.key), by_content.get(item.content_sha256)
            if known is not None and known["key"] not in ("", key):
                results.append(PutResult(None, "refused", image_taken(known["id"], known["key"])))
                continue
            former = [number for number in owners.get(key, []) if known is None or number != known["id"]]
            status: PutStatus = "replaced" if former else "created"
            if known is None:
                row = self._new_row(item, text, by_id, moment())
                fresh.append(row)
            else:
                row, wanted = known, {"source": text[0], "label": text[1] or "", **metadata_fields(item.metadata)}
                if known["key"] != key or _differs(known, wanted):
                    changes[known["id"]] = {**wanted, "key": key}
                    status = "replaced" if former else "updated"
                else:
                    status = "replaced" if former else "unchanged"
            gone += former
            results.append(PutResult(row["id"], status))
        self.connection.write(self.collection, fresh)
        self._rewrite(changes)
        if gone:
            self.connection.delete(self.collection, gone)
        return results

    def _new_row(self, item: NewItem, text: tuple[Any, ...], taken: dict[int, Row], change: int) -> Row:
        """Return the row of a new image, and note it among those whose ids are taken."""
        free = [number for number in ids_of(item.content_sha256) if number not in taken]
        if not free:
            raise GalleryError(f"the ids of {item.source!r} are those of other images.")
        row = taken[free[0]] = new_row(free[0], item, text, change)
        return row

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

    def remove(self, ids: Sequence[int]) -> int:
        with self._writing:
            rows = self.by_ids(sorted(set(ids)), ("id",), strong=True)
            self.connection.delete(self.collection, list(rows))
            self._next_change()
        return len(rows)

    def update(self, places: Sequence[ItemUpdate]) -> None:
        changes = {
            place.item: {"source": place.source, "label": place.label or "", **metadata_fields(place.metadata)}
            for place in places
        }
        with self._writing:
            self._rewrite(changes)
            self._next_change()

    def describe(
        self,
        item_id: int,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, Any] | Unchanged = UNCHANGED,
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
        changed = {**({} if isinstance(label, Unchanged) else {"label": label or ""}), **metadata_fields(metadata)}
        changed |= {} if isinstance(key, Unchanged) else {"key": key or ""}
        with self._writing:
            owners = self._with_keys([key]) if isinstance(key, str) else []
            for owner in owners:
                if owner["id"] != item_id:
                    raise key_taken(owner["key"], owner["id"])
            if not self._rewrite({item_id: changed}):
                raise no_item(item_id)
            return self._next_change()

    def _rewrite(self, changes: Mapping[int, Row]) -> int:
        """Change fields of the items that exist, and return their number."""
        ids, found = list(changes), 0
        for start in range(0, len(ids), PIECE):
            rows = self.by_ids(ids[start : start + PIECE], WHOLE, strong=True)
            changed = [{**row, **changes[number], "change": moment()} for number, row in rows.items()]
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


def _without_repeats(items: Sequence[NewItem]) -> Iterator[tuple[int, int]]:
    """Yield start and end of pieces of at most `PIECE` items, in which no key and no image occurs twice."""
    start, seen = 0, set[tuple[str, str]]()
    for number, item in enumerate(items):
        names = {("key", str(item.key)), ("image", item.content_sha256)}
        if seen & names or number - start == PIECE:
            yield start, number
            start, seen = number, set()
        seen |= names
    if items:
        yield start, len(items)


def _differs(row: Row, wanted: Row) -> bool:
    """Return whether the source, the label or the metadata of a row are others than those wanted."""
    texts = any(row[name] != wanted[name] for name in ("source", "label"))
    return texts or not equal_metadata(row["metadata"], wanted["metadata"])
