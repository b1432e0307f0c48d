"""Export of a gallery to Parquet and a plain FAISS index, and import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from serving.gallery.calibration import calibration_record, checked_record, take_over_calibration
from serving.gallery.gallery import VectorGallery, is_gallery
from serving.gallery.index_files import map_index
from serving.gallery.store import MODEL
from serving.gallery.types import (
    MAX_KEY,
    MAX_LABEL,
    MAX_SOURCE,
    MAX_THUMBNAIL_BYTES,
    Item,
    ItemPlace,
    NewItem,
    Thumbnail,
    check_key,
    check_place,
    model_json,
    read_model,
)
from zoo.errors import GalleryError, GalleryNotFoundError, UsageError, ZooError, missing
from zoo.files import atomic_folder, parse_json, read_json, write_bytes, write_json

try:
    import pyarrow as pa
    from pyarrow import compute, parquet
except ImportError:
    raise missing("pyarrow", "parquet") from None


ITEMS, INDEX = "items.parquet", "index.faiss"
CALIBRATION, REMOVED = "calibration.json", "removed.parquet"
BATCH = 1000
MAX_GROUP_BYTES = 2**29
"""Largest row group that is read, uncompressed; ours have a thousand rows."""

MAX_BYTES = {
    "source": 4 * MAX_SOURCE,
    "label": 4 * MAX_LABEL,
    "metadata": 2**20,
    "content_sha256": 64,
    "added_at": 64,
    "key": 4 * MAX_KEY,
    "folder": 4 * MAX_SOURCE,
    "thumbnail": MAX_THUMBNAIL_BYTES,
    "thumbnail_type": 64,
}
"""Columns of texts and bytes that are read, and the most bytes of one value; a character has at most four."""

OWN_COLUMNS = ("id", *MAX_BYTES, "embedding")
"""Columns that are not keys of the metadata."""

_KINDS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}

ROWS_AT_ONCE, ADDED_BYTES = 16, 2**23
"""Rows that become Python's objects at a time, and the bytes after which they are added to the gallery."""

_PLACE = ("source", "key", "folder", "content_sha256")
"""Columns of `REMOVED`, the places of removed items."""

PLACES_AT_ONCE, MAX_PLACES_BYTES = 256, 2**28
"""Places that become Python's objects at a time, and the characters of all that are read, which stay in memory."""

_BAD_ITEM = ("invalid-item", "invalid-embedding")
Row = tuple[Item, np.ndarray, Thumbnail]


@dataclass(frozen=True)
class ImportedItems:
    """Result of an import.

    Attributes:
        read: The number of items of the export.
        new: The number of those that the gallery did not have.
        calibrated: Whether the gallery took over the export's calibration; None if the export has none.
    """

    read: int
    new: int
    calibrated: bool | None


def export_gallery(path: str | Path, out: Path) -> int:
    """Write a snapshot of a gallery to a new folder; return the number of items.

    It holds the items, the calibration, and the places whose items were removed for good.

    Raises:
        UsageError: `out` is not a new or empty folder.
        GalleryError: The gallery cannot be read or the folder not written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and is not empty; an export needs a folder of its own.", code="already-exists"
            )
        return _write(path, out)
    except OSError as error:  # Arrow's has no file name
        if error.filename and Path(path) in Path(str(error.filename)).parents:
            raise GalleryError(f"{error.filename} cannot be read: {error.strerror}.", code="unreadable-file") from None
        raise GalleryError(
            f"{out} cannot be written, and nothing is left there: {error.strerror or error}.", code="not-writable"
        ) from None


def import_gallery(source: Path, out: str | Path) -> ImportedItems:
    """Add an export's items to a gallery, which is created if it does not exist.

    Items get new ids, in the old order; those whose places the gallery has are skipped. Items that were removed stay
    out of the gallery when their folder is indexed again, unless it has them. The calibration is taken over if the
    gallery then has just these items and no later one.

    Raises:
        GalleryError: The export is incomplete or damaged.
        ModelMismatchError: Another model embedded the gallery.
    """
    if not (source / ITEMS).is_file():
        state = "is not an exported gallery" if source.exists() else "does not exist"
        hint = " It is a gallery or a backup: see zoo gallery backup and restore." if is_gallery(source) else ""
        message = f"{source} {state}. Write one with zoo gallery export GALLERY {source}; it holds {ITEMS} and {MODEL}."
        raise GalleryNotFoundError(message + hint)
    card, model_ref = read_model(source / MODEL)
    file = _open(source / ITEMS, card.dim)
    calibration = _read_calibration(source / CALIBRATION) if (source / CALIBRATION).exists() else None
    removed = _read_removed(source / REMOVED) if (source / REMOVED).exists() else []
    with VectorGallery.open(out) if is_gallery(out) else VectorGallery.create(out, card, model_ref) as gallery:
        gallery.check_model(card)
        read = new = 0
        try:
            for items in _read_items(file):
                new += gallery.add(items).new
                read += len(items)
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, ZooError) as error:
            if isinstance(error, ZooError) and error.code not in _BAD_ITEM:
                raise
            raise GalleryError(
                f"{source / ITEMS} is damaged; {read} items were imported before it: {error}.", code="damaged-file"
            ) from None
        gallery.note_removed(removed)
        calibrated = None if calibration is None else take_over_calibration(gallery, calibration, read)
    return ImportedItems(read, new, calibrated)


def _write(path: str | Path, out: Path) -> int:
    with VectorGallery.open(path) as gallery, atomic_folder(out) as folder:
        dim = gallery.card.dim
        index = faiss.IndexIDMap(faiss.IndexFlatIP(dim))
        kinds = _metadata_kinds(gallery.store.rows())
        schema = _schema(dim, kinds)
        folders = {place.id: place.folder for place in gallery.store.places()}
        with parquet.ParquetWriter(folder / ITEMS, schema, compression="zstd") as writer:
            for rows in _batches(gallery.store.rows()):
                writer.write_table(_table(rows, schema, kinds, folders))
                index.add_with_ids(np.stack([row[1] for row in rows]), np.array([row[0].id for row in rows], np.int64))
        _write_index(index, folder / INDEX)
        write_bytes(folder / MODEL, model_json(gallery.card, gallery.model_ref).encode())
        if (calibration := calibration_record(gallery)) is not None:
            write_json(folder / CALIBRATION, calibration)
        if removed := gallery.store.removed_places():
            columns = {name: pa.array([getattr(place, name) for place in removed], pa.string()) for name in _PLACE}
            parquet.write_table(pa.table(columns), folder / REMOVED, compression="zstd")
        return int(index.ntotal)


def _write_index(index: faiss.Index, path: Path) -> None:
    """Write an index, or raise `OSError`."""
    try:
        faiss.write_index(index, str(path))
        map_index(path)  # FAISS does not report a full disk at the last bytes
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _read_calibration(path: Path) -> dict[str, Any]:
    """Return the calibration of an export."""
    try:
        return checked_record(read_json(path))
    except (OSError, AttributeError, ValueError, TypeError, KeyError) as error:
        raise GalleryError(f"{path} is damaged: {error}. Nothing was imported.", code="damaged-file") from None


def _read_removed(path: Path) -> list[ItemPlace]:
    """Return the places of removed items in an export."""
    places: list[ItemPlace] = []
    size = 0
    try:
        facts = parquet.read_metadata(path)
        _check_groups(path, facts)
        if wrong := _unlike(facts.schema, _PLACE):
            raise ValueError(f"not the columns of places: {', '.join(wrong)}")
        file = parquet.ParquetFile(path, read_dictionary=_PLACE)
        for batch in file.iter_batches(PLACES_AT_ONCE, columns=_PLACE):
            for name in _PLACE:
                _longest(batch[name], name)
            new = [_removed_place(row) for row in batch.to_pylist()]
            size += sum(len(text) for place in new for text in (place.source, place.key, place.folder) if text)
            if size > MAX_PLACES_BYTES:
                raise ValueError(f"the places have more than {MAX_PLACES_BYTES:,} characters")
            places += new
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, UsageError) as error:
        reason = str(error).rstrip(".")
        raise GalleryError(f"{path} is damaged: {reason}. Nothing was imported.", code="damaged-file") from None
    return places


def _removed_place(row: Mapping[str, Any]) -> ItemPlace:
    """Return the place of a removed item. Raises `ValueError`, `TypeError` or `UsageError` if it cannot be one."""
    place = ItemPlace(0, **row)
    check_place(place.source, place.content_sha256, place.folder)
    if place.key is not None:
        check_key(place.key)
    return place


def _metadata_kinds(rows: Iterator[Row]) -> dict[str, Any]:
    """Return the type of each key of the metadata: that of its values, or text if they are of several types."""
    kinds: dict[str, set[Any]] = {}
    for item, _, _ in rows:
        for key, value in item.metadata.items():
            if value is not None:
                kinds.setdefault(key, set()).add(_KINDS.get(type(value), pa.string()))
    numbers = {pa.int64(), pa.float64()}
    return {
        key: next(iter(found)) if len(found) == 1 else pa.float64() if found == numbers else pa.string()
        for key, found in sorted(kinds.items())
    }


def _metadata_columns(metadata: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an item's metadata as columns, which other databases filter by."""
    columns = {}
    for key, kind in kinds.items():
        value = metadata.get(key)
        is_text = kind == pa.string() and value is not None and not isinstance(value, str)
        columns[_column(key)] = json.dumps(value, ensure_ascii=False) if is_text else value
    return columns


def _column(key: str) -> str:
    """Return the name of the column of a key; one of our own names gets a prefix."""
    return f"metadata_{key}" if key in OWN_COLUMNS else key


def _schema(dim: int, kinds: Mapping[str, Any]) -> Any:
    text = ("source", "label", "metadata", "content_sha256", "added_at", "key", "folder")
    return pa.schema(
        [
            pa.field("id", pa.int64()),
            *(pa.field(name, pa.string()) for name in text),
            pa.field("embedding", pa.list_(pa.float32(), dim)),
            pa.field("thumbnail", pa.binary()),
            pa.field("thumbnail_type", pa.string()),
            *(pa.field(_column(key), kind) for key, kind in kinds.items()),
        ]
    )


def _table(rows: Sequence[Row], schema: Any, kinds: Mapping[str, Any], folders: Mapping[int, str | None]) -> Any:
    values = [
        {
            **_metadata_columns(item.metadata, kinds),
            **vars(item),
            "folder": folders.get(item.id),
            "metadata": json.dumps(item.metadata, ensure_ascii=False),
            "embedding": embedding,
            "thumbnail": thumbnail.data,
            "thumbnail_type": thumbnail.media_type,
        }
        for item, embedding, thumbnail in rows
    ]
    return pa.Table.from_pylist(values, schema)


def _new_item(row: dict[str, Any]) -> NewItem:
    return NewItem(
        embedding=np.array(row["embedding"], np.float32),
        thumbnail=Thumbnail(row["thumbnail"], row["thumbnail_type"]),
        metadata=parse_json(row["metadata"]),
        **{name: row[name] for name in ("source", "content_sha256", "label", "added_at", "key", "folder")},
    )


def _open(path: Path, dim: int) -> Any:
    """Open the items of an export; a column of texts is read as its distinct values, which a file has once."""
    try:
        facts = parquet.read_metadata(path)
        texts = _check_columns(path, facts, dim)
        return parquet.ParquetFile(path, read_dictionary=texts)
    except (OSError, pa.ArrowException) as error:
        raise GalleryError(f"{path} cannot be read as an exported gallery: {error}.", code="unreadable-file") from None


def _check_columns(path: Path, facts: Any, dim: int) -> list[str]:
    """Refuse what could decode to more than an export holds; return the columns of texts and bytes."""
    schema = facts.schema
    vectors = [i for i in range(len(schema)) if schema.column(i).path.startswith("embedding.")]
    wrong = _unlike(schema, MAX_BYTES)
    if len(vectors) != 1:
        wrong.append("embedding")
    _check_groups(path, facts)
    for group in map(facts.row_group, range(facts.num_row_groups)):
        if not wrong and group.column(vectors[0]).num_values != group.num_rows * dim:
            wrong.append("embedding")
    if wrong:
        raise GalleryError(
            f"{path} is damaged: not an export's columns: {', '.join(wrong)}. Nothing was imported.",
            code="damaged-file",
        )
    kinds = _kinds(schema)
    return [name for name in MAX_BYTES if kinds[name] == "BYTE_ARRAY"]


def _kinds(schema: Any) -> dict[str, str]:
    """Return the physical type of each column."""
    return {schema.column(i).path: schema.column(i).physical_type for i in range(len(schema))}


def _unlike(schema: Any, names: Iterable[str]) -> list[str]:
    """Return those of the columns that are missing, or that cannot be read as their distinct values."""
    kinds = _kinds(schema)
    return [name for name in names if kinds.get(name) in (None, "FIXED_LEN_BYTE_ARRAY")]


def _check_groups(path: Path, facts: Any) -> None:
    """Refuse row groups that take too much memory."""
    largest = max((facts.row_group(number).total_byte_size for number in range(facts.num_row_groups)), default=0)
    if largest > MAX_GROUP_BYTES:
        raise GalleryError(
            f"{path} has a row group of {largest:,} bytes; at most {MAX_GROUP_BYTES:,} are read. Write smaller row "
            "groups.",
            code="damaged-file",
        )


def _read_items(file: Any) -> Iterator[list[NewItem]]:
    """Yield the items of an export in parts. Raises `ValueError` for a value that is too long, before it is made."""
    items: list[NewItem] = []
    size = 0
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=[*MAX_BYTES, "embedding"]):
        size += batch.num_rows * sum(_longest(batch[name], name) for name in MAX_BYTES)
        items.extend(map(_new_item, batch.to_pylist()))
        if size > ADDED_BYTES or len(items) >= BATCH:
            yield items
            items, size = [], 0
    if items:
        yield items


def _longest(column: Any, name: str) -> int:
    """Return the bytes of the longest value of a column."""
    if not pa.types.is_dictionary(column.type):  # empty, or numbers
        return 0
    longest = compute.max(compute.binary_length(column.dictionary)).as_py() or 0
    if longest > MAX_BYTES[name]:
        raise ValueError(f"a {name} has {longest:,} bytes; at most {MAX_BYTES[name]:,} are read")
    return int(longest)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, BATCH)):
        yield batch
