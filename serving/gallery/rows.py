"""How an item is written as a row of the store, and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.items import Item, NewItem
from zoo.errors import GalleryError

DEEPEST = 32
"""How many objects and lists of metadata may lie in one another: Python reads and writes JSON by recursion."""
LARGEST = 2**63 - 1
"""SQLite's largest whole number, and so the largest id; a larger one would be another number to it, or none."""
ITEM = (
    "id, source, label, metadata, content_sha256, added_at, change, "
    "(SELECT key FROM keys WHERE keys.item = items.id) AS key"
)
"""The columns of which `item_of` makes an item."""


def blob_of(vector: np.ndarray, dim: int, source: str) -> bytes:
    """How an embedding, float32 [dim], is written. Raises `GalleryError` for one of another kind."""
    vector = np.asarray(vector)
    if vector.dtype != np.float32 or vector.shape != (dim,):
        raise GalleryError(f"the embedding of {source!r} is {vector.dtype} {list(vector.shape)}, not float32 [{dim}].")
    if not is_unit(vector):
        raise GalleryError(f"the embedding of {source!r} is not of unit length.")
    return vector.astype("<f4").tobytes()


def is_unit(vectors: np.ndarray) -> np.ndarray:
    """Whether each of float [..., dim] is of unit length, bool [...]; not so where it holds NaN."""
    close: np.ndarray = np.abs(np.linalg.norm(vectors.astype(np.float64), axis=-1) - 1) < 1e-3
    return close


def vector_of(blob: bytes, dim: int, path: Path) -> np.ndarray:
    """What `blob_of` wrote, float32 [dim]; path: of the file. Raises `GalleryError` for one of another length."""
    return vectors_of([blob], dim, path)[0]


def vectors_of(blobs: Sequence[bytes], dim: int, path: Path) -> np.ndarray:
    """As `vector_of`, of several embeddings, float32 [n, dim]."""
    if any(len(blob) != 4 * dim for blob in blobs):
        raise GalleryError(f"{path} holds an embedding that is not {dim} float32 numbers; it is damaged.")
    return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dim).astype(np.float32, copy=False)


def row_of(item: NewItem) -> tuple[Any, ...]:
    """What is written of an item itself but its id and its change. Raises `GalleryError` for what cannot be kept."""
    try:
        metadata = json_of(item.metadata)
        for text in (item.source, item.label or "", metadata):
            text.encode()
    except (TypeError, ValueError) as error:
        raise GalleryError(f"source, label or metadata of {item.source!r} cannot be stored: {error}.") from None
    return item.source, item.label, metadata, item.content_sha256, item.added_at or now()


def item_of(row: tuple[Any, ...]) -> Item:
    item_id, source, label, metadata, *rest = row
    return Item(item_id, source, label, json.loads(metadata), *rest)


def now() -> str:
    """UTC, ISO 8601, as moments are written."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_whole(number: int) -> bool:
    """Whether SQLite can hold it."""
    return -LARGEST - 1 <= number <= LARGEST


def json_of(metadata: Mapping[str, Any]) -> str:
    """Raises `ValueError` or `TypeError` for what is no JSON, and for what SQLite could not find again."""
    _check_values(dict(metadata), DEEPEST)
    return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)


def _check_values(value: object, levels: int) -> None:
    if isinstance(value, int) and not is_whole(value):
        raise ValueError("a whole number is beyond 64 bits")
    if not isinstance(value, dict | list | tuple):
        return
    if not levels:
        raise ValueError(f"more than {DEEPEST} objects or lists lie in one another")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_values(inner, levels - 1)
