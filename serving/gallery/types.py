"""Items, hits and statistics of a gallery, thumbnails, and the codecs of an item's row."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from zoo.data.images import DEFAULT_LIMITS, FORMATS, Limits, open_image
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import GalleryError

THUMBNAIL_SIDE = 256
"""The longest side of a thumbnail in pixels."""

LOSSLESS_SIDE = 128
"""Up to this side a picture is kept pixel by pixel: JPEG would smear it and save nothing."""

_JPEG = b"\xff\xd8"
Block = tuple[np.ndarray, np.ndarray]
"""Ids, int64 [n], ascending, and their vectors, float32 [n, dim]."""

MAX_DEPTH = 32
"""How many objects and lists of metadata may lie in one another: Python reads and writes JSON by recursion."""

MAX_ID = 2**63 - 1
"""SQLite's largest whole number, and so the largest id; a larger one would be another number to it, or none."""

ITEM_COLUMNS = (
    "id, source, label, metadata, content_sha256, added_at, change, "
    "(SELECT key FROM keys WHERE keys.item = items.id) AS key"
)
"""The columns of which `item_of` makes an item."""


@dataclass(frozen=True)
class Thumbnail:
    data: bytes
    media_type: str


def thumbnail_decode_side(size: tuple[int, int]) -> int:
    """The shortest side that a decoded image of that full size needs for its thumbnail to lose nothing."""
    if max(size) <= THUMBNAIL_SIDE:
        return min(size)
    return math.ceil(THUMBNAIL_SIDE * min(size) / max(size))


def make_thumbnail(image: Image.Image) -> Thumbnail:
    """The thumbnail of an upright 8-bit image of mode L or RGB, as `zoo.data.images.open_image` gives it."""
    if max(image.size) <= LOSSLESS_SIDE:
        return _encode(image, "PNG", optimize=True)
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.HAMMING)
    return _encode(small, "JPEG", quality=85)


def decode_image(data: bytes, how: Preprocessing, limits: Limits = DEFAULT_LIMITS) -> tuple[np.ndarray, Thumbnail]:
    """Pixels uint8 [crop, crop, channels] and the thumbnail. Raises `ImageError`."""
    image = open_image(data, limits, draft=how.resize)
    pixels = to_pixels(image, how, limits)
    if not data.startswith(_JPEG):  # no other kind is decoded smaller than it is
        return pixels, make_thumbnail(image)
    with Image.open(BytesIO(data), formats=FORMATS) as header:
        needed = thumbnail_decode_side(header.size)
    # Decoded again only where the image is too small as it was decoded for the model.
    return pixels, make_thumbnail(image if min(image.size) >= needed else open_image(data, limits, draft=needed))


class Unchanged(Enum):
    """What a field is given that stays as it is, where None would take away what it has."""

    UNCHANGED = "as it is"


@dataclass(frozen=True)
class NewItem:
    """What is added. `embedding`: unit row, float32 [dim]; `content_sha256`: of the image file's bytes, in hex.

    `added_at`: UTC, ISO 8601, of an item that was in a gallery before; by default the present. `key`: what a client
    calls it, of which no other item of the gallery has the same.
    """

    source: str
    embedding: np.ndarray
    thumbnail: Thumbnail
    content_sha256: str
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    added_at: str | None = None
    key: str | None = None


def equal_metadata(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they are the same to a filter, to which 1 is not true, as it is to Python."""
    return json.dumps(dict(one), sort_keys=True) == json.dumps(dict(other), sort_keys=True)


@dataclass(frozen=True)
class Item:
    """What is known of an item, without its embedding and picture. `added_at` is UTC, ISO 8601; `key`: the client's."""

    id: int
    source: str
    label: str | None
    metadata: dict[str, Any]
    content_sha256: str
    added_at: str
    change: int
    key: str | None = None

    def differs(self, label: str | None, metadata: Mapping[str, Any]) -> bool:
        """Whether an image that is this item was given another label or other metadata; none at all asks for none."""
        return label not in (None, self.label) or (bool(metadata) and not equal_metadata(metadata, self.metadata))


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True)
class ItemUpdate:
    """Where an item lies now, and what it is: its source, its label and, unless they stay, its metadata."""

    item: int
    source: str
    label: str | None
    metadata: Mapping[str, Any] | Unchanged = UNCHANGED


@dataclass(frozen=True)
class Added:
    """The ids of the items given, in order (the older item's where the content was there); how many were new."""

    ids: list[int]
    new: int


@dataclass(frozen=True)
class Stats:
    items: int
    labels: int
    change: int


@dataclass(frozen=True)
class IndexStats:
    """How a gallery is searched.

    kind, effort, shortlist: the setting (serving.gallery.index). recall: the part of the k nearest that it finds, as
    measured when the generation was written, and the median milliseconds of a search then; None for exact search that
    was never tuned. frozen: vectors of the generation; waiting: how many came or went since; bytes: of its folder;
    device: where the generation is searched, cpu or cuda:N, whose search is exact whatever the setting.
    """

    kind: str
    effort: int
    shortlist: int
    recall: float | None
    k: int | None
    milliseconds: float | None
    generation: str
    frozen: int
    waiting: int
    bytes: int
    device: str = "cpu"


@dataclass(frozen=True)
class StoreChanges:
    """What happened since an older change number: items gone, and items new with vectors float32 [n, dim].

    `number` is that of the last change, `count` how many items there are after it.
    """

    number: int
    count: int
    removed: np.ndarray
    ids: np.ndarray
    vectors: np.ndarray


def equal_blocks(one: Block, other: Block) -> bool:
    return all(np.array_equal(*parts) for parts in zip(one, other, strict=True))


@dataclass(frozen=True)
class ChangeStream:
    """As `Changes`, with the new items in blocks that are read as they are asked for, once."""

    number: int
    count: int
    removed: np.ndarray
    blocks: Iterator[Block]


@dataclass(frozen=True)
class Hit:
    """A neighbour: `similarity` is the cosine, -1 to 1."""

    id: int
    similarity: float
    label: str | None
    source: str


def rank_hits(similarities: np.ndarray, ids: np.ndarray, items: Mapping[int, Item]) -> list[Hit]:
    """Nearest first. similarities: float32 [k]; ids: int64 [k]; an id that is not among `items` is no hit."""
    # Rounding may carry the product of two unit vectors a hair past 1.
    similarities = np.clip(similarities, -1, 1)
    pairs = zip(similarities.tolist(), ids.tolist(), strict=True)
    found = [(similarity, items[item_id]) for similarity, item_id in pairs if item_id in items]
    found.sort(key=lambda pair: (-pair[0], pair[1].id))
    return [Hit(item.id, similarity, item.label, item.source) for similarity, item in found]


def vector_to_blob(vector: np.ndarray, dim: int, source: str) -> bytes:
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


def blob_to_vector(blob: bytes, dim: int, path: Path) -> np.ndarray:
    """What `blob_of` wrote, float32 [dim]; path: of the file. Raises `GalleryError` for one of another length."""
    return blobs_to_vectors([blob], dim, path)[0]


def blobs_to_vectors(blobs: Sequence[bytes], dim: int, path: Path) -> np.ndarray:
    """As `vector_of`, of several embeddings, float32 [n, dim]."""
    if any(len(blob) != 4 * dim for blob in blobs):
        raise GalleryError(f"{path} holds an embedding that is not {dim} float32 numbers; it is damaged.")
    return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dim).astype(np.float32, copy=False)


def item_row(item: NewItem) -> tuple[Any, ...]:
    """What is written of an item itself but its id and its change. Raises `GalleryError` for what cannot be kept."""
    try:
        metadata = metadata_json(item.metadata)
        for text in (item.source, item.label or "", metadata):
            text.encode()
    except (TypeError, ValueError) as error:
        raise GalleryError(f"source, label or metadata of {item.source!r} cannot be stored: {error}.") from None
    return item.source, item.label, metadata, item.content_sha256, item.added_at or utc_now()


def item_from_row(row: tuple[Any, ...]) -> Item:
    item_id, source, label, metadata, *rest = row
    return Item(item_id, source, label, json.loads(metadata), *rest)


def utc_now() -> str:
    """UTC, ISO 8601, as moments are written."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_int64(number: int) -> bool:
    """Whether SQLite can hold it."""
    return -MAX_ID - 1 <= number <= MAX_ID


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Raises `ValueError` or `TypeError` for what is no JSON, and for what SQLite could not find again."""
    _check_values(dict(metadata), MAX_DEPTH)
    return json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)


def _encode(image: Image.Image, kind: str, **options: int) -> Thumbnail:
    out = BytesIO()
    # A fresh image carries no EXIF, GPS position or comment of the original.
    clean = Image.new(image.mode, image.size)
    clean.paste(image)
    clean.save(out, kind, **options)
    return Thumbnail(out.getvalue(), Image.MIME[kind])


def _check_values(value: object, levels: int) -> None:
    if isinstance(value, int) and not is_int64(value):
        raise ValueError("a whole number is beyond 64 bits")
    if not isinstance(value, dict | list | tuple):
        return
    if not levels:
        raise ValueError(f"more than {MAX_DEPTH} objects or lists lie in one another")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_values(inner, levels - 1)
