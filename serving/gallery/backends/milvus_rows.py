"""Rows of a gallery in Milvus: ids, filters as expressions, and how items and facts are written."""

from __future__ import annotations

import hashlib
import time
from base64 import b85decode, b85encode
from collections.abc import Mapping
from typing import Any

from serving.gallery.backends.milvus_client import IDS, TEXT, Row, quoted
from serving.gallery.filters import BOUNDS, Filter, Range, Value
from serving.gallery.types import MAX_ID, Item, ItemPlace, NewItem, Thumbnail, Unchanged, check_types, metadata_json

ATTEMPTS = 3
"""Ids that are derived from a place; the later ones are for a place whose former item, of the first id, has moved."""

LISTED = 50
"""A filter by more values of one metadata key is evaluated here, not in Milvus."""

ITEM = ("id", "source", "label", "metadata", "content_sha256", "added_at", "change", "key")
PLACE = ("id", "source", "key", "folder", "content_sha256")
PICTURE = ("id", "thumbnail", "thumbnail_rest", "thumbnail_type")
WHOLE = (*ITEM, "folder", *PICTURE[1:], "vector", "lists")
MODEL, CHANGE, FACT, STATE, REMOVED = "model", "change", "fact", "state", "removed"

ELSEWHERE = "-"
"""How the folder "", of another machine, is written; "" is that of an item without a file."""


def number_of(*words: object) -> int:
    """Return the id, from 1 to 2**53 - 1, that is derived from some words."""
    digest = hashlib.sha256("\0".join(map(str, words)).encode()).digest()
    return (int.from_bytes(digest[:8]) >> 11) or 1


def expression(selection: Filter) -> str:
    """Translate a filter into a Milvus expression that lets at least the items of the filter through.

    It is exact for labels. Versions of Milvus differ in null, true and 1, and no expression tests whether any member of
    a list is in a range, so that `Filter.matches` decides about metadata.
    """
    parts = [_label_in([label for label in selection.labels if label])] if selection.labels else []
    parts += [part for key, wanted in selection.where.items() if (part := _condition(key, wanted))]
    return " and ".join(parts)


def _label_in(labels: list[str]) -> str:
    # An item without a label has the label "" in Milvus.
    return f"label in [{', '.join(map(quoted, labels))}]" if labels else "id < 0"


def _condition(key: str, wanted: Value | list[Value] | Range) -> str | None:
    path, is_list = f"metadata[{quoted(key)}]", f'json_contains(lists["keys"], {quoted(key)})'
    values = [*wanted.values()] if isinstance(wanted, Mapping) else wanted if isinstance(wanted, list) else [wanted]
    if None in values or len(values) > LISTED or -MAX_ID - 1 in values:  # Milvus does not read the last one
        return None
    if isinstance(wanted, Mapping):
        bounds = " and ".join(f"{path} {BOUNDS[name]} {quoted(value)}" for name, value in wanted.items())
        return f"(({bounds}) or {is_list})"
    texts = [text for value in values for text in _forms(value)]
    tests = [f"{path} == {text}" for text in texts]
    # milvus-lite does not read a negative number inside json_contains.
    tests += {is_list if text.startswith("-") else f"json_contains({path}, {text})": None for text in texts}
    return f"({' or '.join(tests)})"


def _forms(value: Value) -> list[str]:
    """Return the literals of a value; 2 and 2.0 are equal, but members of lists are compared with their type."""
    if isinstance(value, bool | str) or value is None or abs(value) >= IDS or value != int(value):
        return [quoted(value)]
    return [str(int(value)), f"{int(value)}.0"]


def fact_row(kind: str, value: Row, key: str = "") -> Row:
    """Return the row of a fact, which replaces an older row of the same kind and key."""
    return {"id": number_of(kind, key), "value": value, "vector": [1.0, 0.0]}


def ids_of(item: NewItem) -> list[int]:
    """Return the ids that an item can have, by its place: two processes that add one file write one row."""
    if item.key is not None:
        place = ["key", item.key]
    else:
        place = ["image", item.content_sha256] if item.folder is None else ["file", item.folder, item.source]
    return [number_of("item", *place, attempt) for attempt in range(ATTEMPTS)]


def new_row(number: int, item: NewItem, text: tuple[Any, ...], change: int) -> Row:
    source, label, _, added_at = text
    return {
        "id": number,
        "source": source,
        "label": label or "",
        **metadata_fields(item.metadata),
        "added_at": added_at,
        "change": change,
        "key": item.key or "",
        "folder": folder_text(item.folder),
        **image_fields(item),
    }


def image_fields(item: NewItem) -> Row:
    """Return the fields that belong to an item's image."""
    picture = b85encode(item.thumbnail.data).decode()
    return {
        "vector": item.embedding.tolist(),
        "content_sha256": item.content_sha256,
        "thumbnail": picture[:TEXT],
        "thumbnail_rest": picture[TEXT:],
        "thumbnail_type": item.thumbnail.media_type,
    }


def folder_text(folder: str | None) -> str:
    return "" if folder is None else folder or ELSEWHERE


def place_of(row: Row) -> ItemPlace:
    """Return the place of a row, or of the value of a removed place."""
    folder = None if row["folder"] == "" else row["folder"].removeprefix(ELSEWHERE)
    return ItemPlace(row["id"], row["source"], row["key"] or None, folder, row["content_sha256"])


def metadata_fields(metadata: Mapping[str, Any] | Unchanged) -> Row:
    """Return the fields for metadata: the object, and the keys whose values are lists."""
    if isinstance(metadata, Unchanged):
        return {}
    metadata_json(metadata)
    lists = [key for key, value in metadata.items() if isinstance(value, list | tuple)]
    return {"metadata": dict(metadata), "lists": {"keys": lists}}


def item_of(row: Row) -> Item:
    values = {**{field: row[field] for field in ITEM}, "label": row["label"] or None, "key": row["key"] or None}
    return check_types(Item(**values))


def thumbnail_of(row: Row) -> Thumbnail:
    return Thumbnail(b85decode(row["thumbnail"] + row["thumbnail_rest"]), row["thumbnail_type"])


def matches(selection: Filter, row: Row) -> bool:
    return selection.matches(row["label"] or None, row["metadata"])


def moment() -> int:
    """Return the present in microseconds, which stays below 2**53 until the year 2255."""
    return time.time_ns() // 1000
