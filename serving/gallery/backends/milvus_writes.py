"""Changes of a gallery's rows in Milvus, made in memory and written at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from serving.gallery.backends.milvus_client import NAMED, Connection, Row, quoted
from serving.gallery.backends.milvus_rows import (
    ITEM,
    folder_text,
    ids_of,
    image_fields,
    metadata_fields,
    moment,
    new_row,
    number_of,
)
from serving.gallery.types import NewItem, PutResult, equal_metadata, key_taken

FIELDS = (*ITEM, "folder")


class Writes:
    """Rows that a write depends on, as the writes before it leave them.

    Attributes:
        fresh: New rows by id.
        changes: Changed fields of rows that Milvus has, by id.
    """

    def __init__(self, connection: Connection, collection: str, items: Sequence[NewItem]) -> None:
        """Read the rows that have the keys, the places or the images of some items, as of now."""
        self.fresh: dict[int, Row] = {}
        self.changes: dict[int, Row] = {}
        self._by_key: dict[str, Row] = {}
        self._by_file: dict[tuple[str, str], Row] = {}
        self._by_content: defaultdict[str, dict[int, Row]] = defaultdict(dict)
        self._connection, self._collection = connection, collection
        ids = [number for item in items for number in ids_of(item)]
        rows = connection.by_ids(collection, ids, FIELDS, strong=True)
        files = [item.source for item in items if item.folder is not None]
        for field, values in (
            ("key", [item.key for item in items if item.key is not None]),
            ("content_sha256", [item.content_sha256 for item in items]),
            ("source", files),
        ):
            rows |= {row["id"]: row for row in self._with(field, values)}
        self._taken = set(rows)
        for row in rows.values():
            self._note(row)

    def add(self, item: NewItem, text: tuple[Any, ...]) -> int:
        """Add an item, as `serving.gallery.places.add_item`, and return its id."""
        content = item.content_sha256
        if item.key is not None and (owner := self._by_key.get(item.key)):
            if owner["content_sha256"] != content:
                raise key_taken(item.key, owner["id"])
            return int(owner["id"])
        folder, has_place = folder_text(item.folder), item.key is not None or item.folder is not None
        if item.key is None and (there := self._at_file(item)):
            return int(there["id"])
        known = self._first(content, free=has_place)
        if known is None:
            return self._new(item, text)
        if has_place:
            source = {} if item.folder is None else {"source": item.source}
            self._change(known, {"key": item.key or "", "folder": folder, **source})
        return int(known["id"])

    def put(self, item: NewItem, text: tuple[Any, ...]) -> PutResult:
        """Put an item, as `serving.gallery.places.put_item`."""
        owner = self._by_key.get(str(item.key))
        known = owner or self._at_file(item) or self._first(item.content_sha256, free=True)
        if known is None:
            return PutResult(self._new(item, text), "created")
        is_new_image = known["content_sha256"] != item.content_sha256
        described = {"source": text[0], "label": text[1] or "", **metadata_fields(item.metadata)}
        same = all(known[name] == described[name] for name in ("source", "label"))
        if owner and not is_new_image and same and equal_metadata(known["metadata"], described["metadata"]):
            return PutResult(owner["id"], "unchanged")
        keeps_file = item.folder is None and item.source == known["source"]
        described["folder"] = known["folder"] if keeps_file else folder_text(item.folder)
        image = {**image_fields(item), "change": moment()} if is_new_image else {}
        self._change(known, {**described, "key": item.key, **image})
        return PutResult(known["id"], "replaced" if is_new_image else "updated")

    def _at_file(self, item: NewItem) -> Row | None:
        """Return the item without a key at the file of a new item."""
        return None if item.folder is None else self._by_file.get((item.source, folder_text(item.folder)))

    def _first(self, content: str, free: bool) -> Row | None:
        """Return the first item with an image; free: without a place."""
        rows = [row for row in self._by_content[content].values() if not (free and (row["key"] or row["folder"]))]
        return min(rows, key=lambda row: row["id"], default=None)

    def _new(self, item: NewItem, text: tuple[Any, ...]) -> int:
        derived = [*ids_of(item), number_of("item", item.key, item.source, moment())]
        number = next(number for number in derived if number not in self._taken)
        row = self.fresh[number] = new_row(number, item, text, moment())
        self._taken.add(number)
        self._note(row)
        return number

    def _change(self, row: Row, values: Row) -> None:
        self._by_content[row["content_sha256"]].pop(row["id"], None)
        if self._by_file.get((row["source"], row["folder"])) is row:
            del self._by_file[row["source"], row["folder"]]
        row |= values
        if row["id"] not in self.fresh:
            self.changes[row["id"]] = {**self.changes.get(row["id"], {}), **values}
        self._note(row)

    def _note(self, row: Row) -> None:
        self._by_content[row["content_sha256"]][row["id"]] = row
        if row["key"]:
            self._by_key[row["key"]] = row
        elif row["folder"]:
            self._by_file[row["source"], row["folder"]] = row

    def _with(self, field: str, values: Iterable[str]) -> list[Row]:
        texts = list(dict.fromkeys(values))
        pieces = [texts[start : start + NAMED] for start in range(0, len(texts), NAMED)]
        conditions = [f"{field} in [{', '.join(map(quoted, piece))}]" for piece in pieces]
        return [
            row
            for condition in conditions
            for row in self._connection.rows(self._collection, condition, FIELDS, strong=True)
        ]
