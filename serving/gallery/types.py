"""Values of a gallery: items, hits, statistics and thumbnails, and how SQLite stores them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image

from zoo.console import CONTROL, count
from zoo.data.dataset import DataIdentity, identify_rows
from zoo.data.images import DEFAULT_LIMITS, Limits, open_file, open_image
from zoo.data.names import canonical, escaped
from zoo.data.perceptual_hash import perceptual_hash
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import CardError, GalleryError, ImageError, ItemConflictError, ItemNotFoundError, UsageError
from zoo.files import MAX_JSON_BYTES, parse_json, read_bytes
from zoo.models.card import Card, card_from_json

THUMBNAIL_SIDE = 256
"""Longest side of a thumbnail in pixels."""

LOSSLESS_SIDE = 128
"""Up to this side a thumbnail is a PNG of the image itself; JPEG would blur it and save nothing."""

MAX_KEY = 256
"""Largest number of characters of a key."""

MAX_SOURCE = 4096
"""Largest number of characters of a source, as of a path in Linux."""

SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
"""Types of thumbnails, which a service sends as they are stored, and the first bytes of such files."""

MAX_THUMBNAIL_BYTES = 2**18
"""More than any picture of `THUMBNAIL_SIDE` takes."""

THUMBNAIL_LIMITS = Limits(max_bytes=MAX_THUMBNAIL_BYTES, max_pixels=THUMBNAIL_SIDE**2)
"""Limits at which a stored thumbnail is decoded."""

MAX_DEPTH = 32
"""Nesting of objects and lists in metadata; Python reads and writes JSON by recursion."""

SCHEME = "milvus"
"""Beginning of the addresses of galleries in Milvus."""

MAX_ID = 2**63 - 1
"""SQLite's largest integer, and so the largest id."""

ITEM_COLUMNS = (
    "id, source, label, metadata, "
    "(SELECT content_sha256 FROM contents WHERE contents.id = items.content) AS content_sha256, added_at, change, key"
)
"""Columns from which `item_from_row` makes an item."""

LISTED = "(SELECT value FROM json_each(?))"
"""A list, given as JSON, as one value of a statement, which takes a limited number of them."""

DEFAULT_K = 10
"""Number of results of a search, and the k at which recall is measured."""

MAX_ALSO = 100
"""Most further items that a hit names; a picture that stands for a missing one may be that of thousands."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image, as fractions of its sides."""

PutStatus = Literal["created", "replaced", "updated", "unchanged"]

T = TypeVar("T")

Block = tuple[np.ndarray, np.ndarray]
"""Ids, int64 [n], ascending, and their vectors, float32 [n, dim]."""


class Unchanged(Enum):
    """Type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Value for a field that keeps its value, where None would clear it."""

MetadataChange = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Function from the metadata that an item has to those that it gets."""


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of an image, PNG or JPEG; size: width and height of the image, in pixels, if they are known.

    Raises:
        ImageError: If bytes and type are not those of one of the two, or are too many (code "invalid-item"). Files and
            exports of others can hold anything, such as a page with a script.
    """

    data: bytes
    media_type: str
    size: tuple[int, int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        signature, is_bytes = SIGNATURES.get(self.media_type), isinstance(self.data, bytes)
        if self.media_type == "image/png" and self.data == b"":  # `NO_PICTURE`
            return
        if signature is None or not is_bytes or not self.data.startswith(signature):
            message = f"a thumbnail of the type {self.media_type!r} is not a PNG or JPEG of that type."
        elif len(self.data) > MAX_THUMBNAIL_BYTES:
            message = f"a thumbnail has {len(self.data):,} bytes; at most {MAX_THUMBNAIL_BYTES:,} are kept."
        else:
            return
        raise ImageError(message, code="invalid-item")


NO_PICTURE = Thumbnail(b"", "image/png")
"""Thumbnail of an item of which only the embedding is known."""


@dataclass(frozen=True)
class NewItem:
    """An item to add.

    Attributes:
        source: Path of the image file, or another name of its origin.
        embedding: Unit vector, float32 [dim].
        content_sha256: Hash of the image file, in hex; `vector_sha256` if there is no image.
        added_at: UTC, ISO 8601; the present by default, else the time of an item that is restored.
        key: The user's own name of the item, unique in the gallery (`check_key`).
        folder: URI of the folder that holds the file `source`, "" for one of another machine; None if the image is no
            file that this gallery was made of.
    """

    source: str
    embedding: np.ndarray
    thumbnail: Thumbnail
    content_sha256: str
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    added_at: str | None = None
    key: str | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key and canonical(self.key))


@dataclass(frozen=True)
class Item:
    """An item without its embedding and thumbnail; fields as of `NewItem`.

    change: the number of the change that gave it its image.
    """

    id: int
    source: str
    label: str | None
    metadata: dict[str, Any]
    content_sha256: str
    added_at: str
    change: int
    key: str | None = None

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Return the place among the items of one image, of which the best described one comes first."""
        return self.key is None, self.label is None, not self.metadata, self.id

    def differs(self, label: str | None, metadata: Mapping[str, Any]) -> bool:
        """Return whether a label or metadata other than the item's are given; None and {} count as not given."""
        return label not in (None, self.label) or not equal_metadata({**self.metadata, **metadata}, self.metadata)


@dataclass(frozen=True, kw_only=True)
class ItemCopy(Item):
    """Item that is a copy of another.

    Attributes:
        similarity: Cosine of their embeddings.
        distance: Different bits of their perceptual hashes, of 256.
        mirrored: Whether it is the mirror image.
        part: Whether the distance is of the part that both show.
        width: Width of the image in pixels, None if it is not known; as is `height`.
        height: Height of the image.
    """

    similarity: float
    distance: int
    mirrored: bool
    part: bool
    width: int | None
    height: int | None


ALL_FIELDS = "*"
"""Name for all metadata, where a search is asked for some."""
LABEL = "label"
"""What results are grouped by if not by a key of the metadata."""

_TEXT_OR_NONE = (str, type(None))
_ITEM_TYPES: tuple[Any, ...] = (int, str, _TEXT_OR_NONE, dict, str, str, int, _TEXT_OR_NONE)
"""Types of an item's values, in the order of its fields."""

MAX_LABEL = 2**16
"""Most characters of a label that is read: a page of items with labels of megabytes would fill the memory."""

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ItemUpdate:
    """A new source and label of an item, and other values that are not `UNCHANGED`. image: new image and embedding."""

    item: int
    source: str
    label: str | None
    metadata: Mapping[str, Any] | Unchanged = UNCHANGED
    folder: str | Unchanged | None = UNCHANGED
    key: str | Unchanged | None = UNCHANGED
    image: NewItem | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label and canonical(self.label))
        object.__setattr__(self, "key", canonical(self.key) if isinstance(self.key, str) else self.key)


@dataclass(frozen=True)
class AddResult:
    """Ids of items in the given order (of a known image or place, the older item's id), and the number of new ones."""

    ids: list[int]
    new: int


@dataclass(frozen=True)
class PutResult:
    """Outcome of one item that was put under its key.

    Attributes:
        id: The item, which stays the same under all images.
        status: "created" (the key is new), "replaced" (it has another image now), "updated" (the same image with
            another source, label or metadata, or an image without a place that got the key) or "unchanged".
        notes: What was assumed about the file.
    """

    id: int
    status: PutStatus
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ItemPlace:
    """Place of an item: a file, the user's key, or both; None for what it lacks. Fields as of `NewItem`."""

    id: int
    source: str
    key: str | None
    folder: str | None
    content_sha256: str


@dataclass(frozen=True)
class OtherItem:
    """Another item that has the image of a hit."""

    id: int
    source: str
    label: str | None
    key: str | None


@dataclass(frozen=True)
class Hit:
    """An image near to a query, as the item that describes it best.

    Attributes:
        key: The user's own name of the item, None without one.
        similarity: The cosine, from -1 to 1.
        p_same: Probability that it has the query's class (see `zoo.evaluation.calibration`), 1 for the identical image;
            None without a calibration, for texts and for sums.
        likely: Whether it is likely to show what the query shows, by the gallery's calibration or the model's default
            curve (see `zoo.evaluation.relevance`); None where neither is known, for texts and for sums.
        rerank_score: What orders re-ranked results, the highest first; None for others.
        also: Other items with the same image, at most `MAX_ALSO`.
        group: Value that no other result has, where results are grouped by a key of the metadata.
        metadata: Those of the item's metadata that the search was asked for; None if for none.
    """

    id: int
    similarity: float
    label: str | None
    source: str
    p_same: float | None = None
    likely: bool | None = None
    rerank_score: float | None = None
    key: str | None = None
    also: tuple[OtherItem, ...] = ()
    group: Any = None
    metadata: dict[str, Any] | None = None

    def shows(self, item: int) -> bool:
        """Return whether its image is that of an item."""
        return item == self.id or any(item == other.id for other in self.also)


@dataclass(frozen=True)
class Stats:
    items: int
    labels: int
    change: int


@dataclass(frozen=True)
class Attribution:
    """Origin of a measurement of a gallery.

    Attributes:
        model: Name and fingerprint of the model that embedded the items.
        data: The items, identified by the SHA-256 of their files and by their labels.
        protocol: What searches what, and what is held out.
        queries: Number of items that search.
        seed: Seed by which they were drawn.
        date: ISO 8601, UTC.
    """

    model: Mapping[str, str]
    data: DataIdentity
    protocol: str
    queries: int
    seed: int
    date: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the record. Raises `KeyError`, `TypeError` or `ValueError` for values of another kind."""
        attribution = cls(**{**values, "data": DataIdentity(**values["data"])})
        _ = attribution.text  # raises for values of other types, which this could not say
        return attribution

    @property
    def text(self) -> str:
        """Return the origin as one line."""
        images = f"{count(self.data.images, 'item')} of {count(self.data.classes, 'label')}"
        return (
            f"{self.data}: {images}; {count(self.queries, 'query', 'queries')}: {self.protocol}; model "
            f"{self.model['name']} ({self.model['fingerprint'][:8]}); seed {self.seed}; {self.date}"
        )


def identify_items(address: str | Path, contents: Iterable[tuple[str, str | None]]) -> DataIdentity:
    """Return the identity of the items of a gallery: the SHA-256 and label of each, in the order of the hashes."""
    return identify_rows(Path(address).resolve().name, contents)


@dataclass(frozen=True)
class IndexStats:
    """Index of a gallery.

    Attributes:
        kind, effort, shortlist: Setting (serving.gallery.index.IndexSetting).
        recall: Share of the k nearest that it finds, measured when its files were written; None for exact search.
        milliseconds: Median time of one search, measured at the same time.
        generation: Name of the folder of its files.
        frozen: Vectors in these files.
        waiting: Vectors added or removed since.
        bytes: Size of the files.
        device: cpu or cuda:N. Search on a GPU is exact.
        measured: Origin of the recall and the time; None where they were not measured.
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
    measured: Attribution | None = None


@dataclass(frozen=True)
class StoreChanges:
    """Changes of a store since an older change number.

    Attributes:
        number: The last change.
        count: Items after it.
        removed: Ids that were removed, int64 [n].
        blocks: Ids and vectors that were added; an iterator reads them from the store once.
    """

    number: int
    count: int
    removed: np.ndarray
    blocks: Iterable[Block]


def rank_hits(similarities: np.ndarray, ids: np.ndarray, items: Mapping[int, Sequence[Item]]) -> list[Hit]:
    """Return the hits of one query, one per image, nearest first, equal ones in the order of their ids.

    Args:
        similarities: float32 [k].
        ids: int64 [k], as the index has them.
        items: Items by these ids, the best described one first; an id without items is not a hit.
    """
    similarities = np.clip(similarities, -1, 1)  # rounding carries products of unit vectors past 1
    by_image: dict[str, tuple[float, list[Item]]] = {}
    for similarity, number in zip(similarities.tolist(), ids.tolist(), strict=True):
        for item in items.get(number, ()):
            by_image.setdefault(item.content_sha256, (similarity, []))[1].append(item)
    hits = []
    for similarity, items_of_image in by_image.values():
        item, *others = (
            sorted(items_of_image, key=lambda item: item.rank) if len(items_of_image) > 1 else items_of_image
        )
        also = tuple(OtherItem(other.id, other.source, other.label, other.key) for other in others[:MAX_ALSO])
        hits.append(Hit(item.id, similarity, item.label, item.source, key=item.key, also=also))
    return sorted(hits, key=lambda hit: (-hit.similarity, hit.id))


def folder_uri(folder: Path) -> str:
    """Return the path of a folder as a gallery keeps it: a text for names of any bytes."""
    return folder.expanduser().resolve().as_uri()


def is_folder_uri(folder: object) -> bool:
    """Return whether a value is what a gallery keeps of a folder: None, "", or what `folder_uri` returns."""
    if folder is None or folder == "":
        return True
    return isinstance(folder, str) and folder.isascii() and folder.startswith("file:///") and "%00" not in folder


@cache
def folder_path(uri: str) -> str:
    """Return the path of a folder that `folder_uri` wrote."""
    path = unquote(urlsplit(uri).path, errors="surrogateescape")
    return path.removeprefix("/") if os.name == "nt" else path


def check_key(key: str) -> str:
    """Return a key in Unicode's form C: 1 to `MAX_KEY` characters without control characters.

    Raises:
        UsageError: If it is not one (code "invalid-item").
    """
    key = canonical(key)
    if not 0 < len(key) <= MAX_KEY:
        raise UsageError(f"a key has 1 to {MAX_KEY} characters, not {len(key):,}.", code="invalid-item")
    # Cs: halves of surrogate pairs, which UTF-8 cannot hold.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in key):
        raise UsageError(f"the key {key!a} has a control character, or is not valid Unicode.", code="invalid-item")
    return key


def check_source(source: str) -> str:
    """Return a source: 1 to `MAX_SOURCE` characters, none of `CONTROL`; every way into a gallery passes here.

    Raises:
        UsageError: If it is not one (code "invalid-value").
    """
    if not 0 < len(source) <= MAX_SOURCE:
        raise UsageError(f"a source has 1 to {MAX_SOURCE} characters, not {len(source):,}.", code="invalid-value")
    if CONTROL.search(source):
        raise UsageError(f"the source {source[:100]!a} has control characters.", code="invalid-value")
    return source


def check_place(source: str, content_sha256: str, folder: str | None) -> None:
    """Refuse what cannot be the place of an item and the hash of its image.

    Raises:
        UsageError: If the source is not one (code "invalid-value").
        ValueError: If the hash or the folder is not one.
    """
    check_source(source)
    if not _SHA256.fullmatch(content_sha256):
        raise ValueError(f"{content_sha256[:100]!r} is not a SHA-256")
    if not is_folder_uri(folder):
        raise ValueError(f"{str(folder)[:100]!r} is not the URI of a folder")


def name_as_source(name: str) -> str:
    """Return the name of a file as a source (`zoo.data.names.escaped`); `Originals` finds the file by it."""
    return escaped(name)[:MAX_SOURCE]


def vector_sha256(key: str, embedding: np.ndarray) -> str:
    """Return what stands for the hash of the image of an item without one: the SHA-256 of its key and embedding."""
    return hashlib.sha256(b"\0".join([b"vector", key.encode(), embedding.astype("<f4").tobytes()])).hexdigest()


def unit_vector(numbers: np.ndarray, dim: int) -> np.ndarray:
    """Return a vector of any length as a unit vector, float32 [dim]; one of unit length is unchanged.

    Raises:
        UsageError: If it is not one of `dim` finite numbers, or is zero (code "invalid-embedding").
    """
    numbers = np.asarray(numbers)
    if numbers.shape != (dim,) or numbers.dtype.kind not in "fiu":
        sides = " x ".join(map(str, numbers.shape)) or "1"
        raise UsageError(f"the vector has {sides} numbers; expected {dim}.", code="invalid-embedding")
    largest = float(np.abs(numbers.astype(np.float64)).max(initial=0))
    if not math.isfinite(largest):
        raise UsageError("the vector holds NaN or infinity.", code="invalid-embedding")
    if largest == 0:
        raise UsageError("the vector is zero, and has no direction.", code="invalid-embedding")
    with np.errstate(over="ignore"):
        single: np.ndarray = numbers.astype(np.float32)
    if not is_unit(single):
        scaled = numbers.astype(np.float64) / largest  # neither overflow nor underflow of the squares
        single = (scaled / np.linalg.norm(scaled)).astype(np.float32)
    return single


def vector_item(
    key: str, numbers: np.ndarray, dim: int, source: str, label: str | None, metadata: Mapping[str, Any]
) -> NewItem:
    """Return the item of a key of which only the embedding is known; `numbers` may have any length.

    Raises:
        UsageError: As `check_key` and `unit_vector`.
    """
    row = unit_vector(numbers, dim)
    return NewItem(check_source(source), row, NO_PICTURE, vector_sha256(check_key(key), row), label, metadata, key=key)


def no_item(named: int | str) -> ItemNotFoundError:
    """Return the error for an id, or a key (a text), that no item has."""
    name = f"with the key {named!r}" if isinstance(named, str) else named
    return ItemNotFoundError(f"the gallery has no item {name}.")


def key_taken(key: str, owner: int) -> ItemConflictError:
    return ItemConflictError(f"the key {key!r} belongs to item {owner}, which is another image.")


class ReadImage(NamedTuple):
    """An image as a gallery takes it.

    Attributes:
        pixels: What the model takes, uint8 [crop, crop, channels].
        thumbnail: The thumbnail.
        notes: What was assumed about the file.
        facts: What the camera wrote: taken, camera, latitude and longitude, where they are known; and width and height.
    """

    pixels: np.ndarray
    thumbnail: Thumbnail
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def decode_image(data: bytes, how: Preprocessing, limits: Limits = DEFAULT_LIMITS) -> ReadImage:
    """Return what a gallery takes of an image file.

    Raises:
        ImageError: If the bytes are not an image within the limits.
    """
    image, size, notes, facts = open_file(data, limits, draft=how.resize)
    pixels, needed = to_pixels(image, how, limits), thumbnail_decode_side(size)
    # A JPEG is decoded at a smaller size, perhaps a smaller one than a sharp thumbnail needs.
    enough = image.size == size or min(image.size) >= needed
    thumbnail = make_thumbnail(image if enough else open_image(data, limits, draft=needed))
    if facts:
        facts = {**facts, "width": size[0], "height": size[1]}
    return ReadImage(pixels, replace(thumbnail, size=size), notes, facts)


def thumbnail_decode_side(size: tuple[int, int]) -> int:
    """Return the shortest side at which an image of this full size must be decoded for a sharp thumbnail."""
    if max(size) <= THUMBNAIL_SIDE:
        return min(size)
    return math.ceil(THUMBNAIL_SIDE * min(size) / max(size))


def make_thumbnail(image: Image.Image) -> Thumbnail:
    """Return the thumbnail of an upright 8-bit image of mode L or RGB, as `open_image` returns it."""
    if max(image.size) <= LOSSLESS_SIDE:
        return replace(_encode(image, "PNG", optimize=True), size=image.size)
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.HAMMING)
    return replace(_encode(small, "JPEG", quality=85), size=image.size)


def thumbnail_hash(thumbnail: Thumbnail) -> bytes | None:
    """Return the perceptual hash of a thumbnail, 32 bytes; None if it cannot be decoded."""
    try:
        return perceptual_hash(open_image(thumbnail.data, THUMBNAIL_LIMITS)).tobytes()
    except ImageError:
        return None


def _encode(image: Image.Image, image_format: str, **options: int) -> Thumbnail:
    out = BytesIO()
    # A new image carries no EXIF data, GPS position or comment of the original.
    clean = Image.new(image.mode, image.size)
    clean.paste(image)
    clean.save(out, image_format, **options)
    return Thumbnail(out.getvalue(), Image.MIME[image_format])


def is_unit(vectors: np.ndarray) -> np.ndarray:
    """Return whether each of float [..., dim] has unit length, bool [...]; False for NaN."""
    close: np.ndarray = np.abs(np.linalg.norm(vectors.astype(np.float64), axis=-1) - 1) < 1e-3
    return close


def equal_blocks(first: Block, second: Block) -> bool:
    return all(np.array_equal(*parts) for parts in zip(first, second, strict=True))


def equal_metadata(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether metadata are equal to a filter, which, unlike Python, tells 1 from true."""
    one, other = (canonical(json.dumps(dict(part), sort_keys=True, ensure_ascii=False)) for part in (first, second))
    return one == other


def vector_to_blob(vector: np.ndarray, dim: int, source: str) -> bytes:
    """Return a unit vector, float32 [dim], as bytes.

    Raises:
        GalleryError: If it is not one (code "invalid-embedding").
    """
    vector = np.asarray(vector)
    if vector.dtype != np.float32 or vector.shape != (dim,):
        kind = f"{vector.dtype} {list(vector.shape)}, not float32 [{dim}]"
    elif not is_unit(vector):
        kind = "not of unit length"
    else:
        return vector.astype("<f4").tobytes()
    raise GalleryError(f"the embedding of {source!r} is {kind}.", code="invalid-embedding")


def blob_to_vector(blob: bytes, dim: int, path: Path) -> np.ndarray:
    """Return one vector, float32 [dim]; errors as of `blobs_to_vectors`."""
    return blobs_to_vectors([blob], dim, path)[0]


def blobs_to_vectors(blobs: Sequence[bytes], dim: int, path: Path) -> np.ndarray:
    """Return vectors, float32 [n, dim], that `vector_to_blob` wrote to the file `path`.

    Raises:
        GalleryError: If one has another length (code "damaged-gallery").
    """
    if not all(isinstance(blob, bytes) and len(blob) == 4 * dim for blob in blobs):
        message = f"{path} is damaged: it has an embedding that is not {dim} float32 numbers."
        raise GalleryError(message, code="damaged-gallery")
    return np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dim).astype(np.float32, copy=False)


def item_row(item: NewItem | Item) -> tuple[Any, ...]:
    """Return source, label, metadata and added_at of an item as columns.

    Raises:
        GalleryError: If a value is not one that a gallery keeps (code "invalid-item").
    """
    try:
        check_place(item.source, item.content_sha256, item.folder if isinstance(item, NewItem) else None)
        metadata = metadata_json(item.metadata)
        for text in (item.label or "", metadata):
            text.encode()
    except (AttributeError, TypeError, ValueError, UsageError) as error:
        message = f"the values of {str(item.source)[:100]!r} cannot be stored: {str(error).rstrip('.')}."
        raise GalleryError(message, code="invalid-item") from None
    return item.source, item.label and canonical(item.label), metadata, item.added_at or utc_now()


def item_from_row(row: Sequence[Any]) -> Item:
    """Return the item of a row with `ITEM_COLUMNS`.

    Raises:
        GalleryError: If a value has another type than this program writes, or the metadata are not a JSON object (code
            "damaged-gallery").
    """
    item_id, source, label, metadata, *rest = row
    try:
        values = parse_json(metadata)
    except (TypeError, ValueError) as error:
        raise GalleryError(f"item {item_id} is damaged: its metadata: {error}.", code="damaged-gallery") from None
    return check_types(Item(item_id, source, label, values, *rest))


def check_types(item: Item) -> Item:
    """Return an item that was read. Raises `GalleryError` ("damaged-gallery") if a value is of another type."""
    if not all(map(isinstance, vars(item).values(), _ITEM_TYPES)):
        values = zip(vars(item).items(), _ITEM_TYPES, strict=True)
        name = next(name for (name, value), kind in values if not isinstance(value, kind))
        message = f"item {item.id} is damaged: its {name} is of another type than a gallery holds."
        raise GalleryError(message, code="damaged-gallery")
    if item.label is not None and len(item.label) > MAX_LABEL:
        message = (
            f"item {item.id} is damaged: its label has {len(item.label):,} characters; at most {MAX_LABEL:,} are read."
        )
        raise GalleryError(message, code="damaged-gallery")
    return item


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON in Unicode's form C.

    Raises:
        ValueError, TypeError: For values that JSON does not have, or that SQLite could not read.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError("metadata are an object")
    _check_values(dict(metadata), MAX_DEPTH)
    return canonical(json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False))


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise `UsageError` (`invalid-value`) for metadata that cannot be stored."""
    try:
        metadata_json(metadata)
    except (ValueError, TypeError) as error:
        raise UsageError(f"these metadata cannot be stored: {error}.", code="invalid-value") from None


def merged_metadata(change: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item's metadata with a change merged into them (RFC 7396): null removes a key."""
    merged = dict(metadata)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            inner = merged.get(key)
            merged[key] = merged_metadata(value, inner if isinstance(inner, Mapping) else {})
        else:
            merged[key] = value
    return merged


def item_change(
    label: str | None, metadata: Mapping[str, Any] | None, unlabel: bool, key: str | None
) -> dict[str, Any]:
    """Return those of an item's label, metadata and key that are to change; with `unlabel` the label becomes None.

    Raises:
        UsageError: If nothing is to change, a label is given and removed, or the key or the metadata cannot be stored.
    """
    if (label is not None and unlabel) or (label is None and metadata is None and key is None and not unlabel):
        raise UsageError("describe needs a label or unlabel=True, metadata, or a key.", code="missing-value")
    change: dict[str, Any] = {"label": label} if label is not None or unlabel else {}
    if metadata is not None:
        check_metadata(metadata)
        change["metadata"] = dict(metadata)
    return change if key is None else {**change, "key": check_key(key)}


def _check_values(value: object, depth: int) -> None:
    if isinstance(value, int) and not is_int64(value):
        raise ValueError("an integer has more than 64 bits")
    if not isinstance(value, dict | list | tuple):
        return
    if not depth:
        raise ValueError(f"objects and lists are nested more than {MAX_DEPTH} deep")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_values(inner, depth - 1)


def is_int64(number: int) -> bool:
    return -MAX_ID - 1 <= number <= MAX_ID


def model_json(card: Card, model_ref: str) -> str:
    """Return the text of model.json, which `read_model` reads."""
    return json.dumps({"ref": model_ref, "card": card.to_json()}, indent=2, ensure_ascii=False)


def read_model(path: Path) -> tuple[Card, str]:
    """Return the card in a model.json, and the name or path by which the model is loaded.

    Raises:
        GalleryError: If the file is missing or damaged (code "damaged-gallery").
    """
    try:
        text = read_bytes(path, MAX_JSON_BYTES).decode()
    except (OSError, ValueError) as error:
        message = f"{path} does not name the gallery's model: {error}."
        raise GalleryError(message, code="damaged-gallery") from None
    return parse_model(text, path)


def parse_model(text: str, path: str | Path) -> tuple[Card, str]:
    """Return what `read_model` returns, for a text that was read from `path`."""
    try:
        values = parse_json(text)
        return card_from_json(values["card"]), str(values["ref"])
    except (ValueError, KeyError, TypeError, CardError) as error:
        message = f"{path} does not name the gallery's model: {error}."
        raise GalleryError(message, code="damaged-gallery") from None


def parse_stored(text: str, name: str, path: str | Path, make: Callable[[Any], T]) -> T:
    """Return what `make` makes of a JSON text that the gallery at `path` keeps under a name.

    Raises:
        GalleryError: If it is not what this program writes there (code "damaged-gallery").
    """
    try:
        return make(parse_json(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise GalleryError(f"{path} is damaged: its {name}: {error}.", code="damaged-gallery") from None


def is_address(text: str | Path) -> bool:
    """Return whether a text is meant as an address in Milvus, not as a folder."""
    return str(text).startswith(f"{SCHEME}://")


def utc_now() -> str:
    """Return the present, UTC, ISO 8601, in milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
