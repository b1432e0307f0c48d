"""Export of a gallery to Parquet and a plain FAISS index, and import."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.feedback import Mark
from serving.gallery.gallery import MODEL, STORE, Gallery, is_gallery, model_json, read_model, store_model
from serving.gallery.index_files import FlatFile
from serving.gallery.store import Store
from serving.gallery.types import Item, NewItem, Thumbnail
from zoo.errors import GalleryError, GalleryNotFoundError, UsageError, missing
from zoo.files import atomic_folder, write_bytes

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:
    raise missing("pyarrow", "parquet") from None


ITEMS, INDEX, MARKS = "items.parquet", "index.faiss", "marks.parquet"
BATCH = 1000
Row = tuple[Item, np.ndarray, Thumbnail]


def export_gallery(path: Path, out: Path) -> int:
    """Write the gallery's items, of one moment, and its marks to a new folder; how many items there are.

    Raises `UsageError` where `out` is not a new or empty folder, and `GalleryError` where it cannot be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out} exists and is not empty; an export needs a folder of its own.")
        return _write(path, out)
    except OSError as error:  # Arrow raises it without the file
        if error.filename and path in Path(str(error.filename)).parents:
            raise GalleryError(f"{error.filename} cannot be read: {error.strerror}.") from None
        raise GalleryError(f"{out} cannot be written, nothing was left there: {error.strerror or error}.") from None


def import_gallery(source: Path, out: Path) -> tuple[int, int]:
    """Add an export's items to the gallery `out`, which is made if it is not there; how many were read, and new.

    Items get new ids, in the old order; content that is there already is passed over. Of a pair of images that is
    marked here and there the later mark counts. Raises `GalleryError` for an
    export that is incomplete or damaged and `ModelMismatchError` for another model's.
    """
    if not (source / ITEMS).is_file():
        raise GalleryNotFoundError(_no_export(source))
    card, model_ref = read_model(source / MODEL)
    file = _open(source / ITEMS)
    marks = _open(source / MARKS) if (source / MARKS).exists() else None
    with Gallery.open(out) if is_gallery(out) else Gallery.create(out, card, model_ref) as gallery:
        gallery.check_model(card)
        read = new = 0
        try:
            for batch in file.iter_batches(BATCH):
                items = [_new_item(row) for row in batch.to_pylist()]
                new += gallery.add(items).new
                read += len(items)
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
            raise GalleryError(f"{source / ITEMS} is damaged; {read} items were read before: {error}.") from None
        if marks:
            _take_over(gallery, marks, source / MARKS)
    return read, new


def _write(path: Path, out: Path) -> int:
    with Gallery.open(path), Store(path / STORE).closing() as store, atomic_folder(out) as made:
        with (
            parquet.ParquetWriter(made / ITEMS, _schema(store.dim), compression="zstd") as writer,
            FlatFile(made / INDEX, store.dim, named=True) as index,
        ):
            for rows in _batches(store.rows()):
                writer.write_table(_table(rows, store.dim))
                index.add(np.array([row[0].id for row in rows]), np.stack([row[1] for row in rows]))
        marks = [asdict(mark) for mark in store.marks.all()]
        parquet.write_table(pa.Table.from_pylist(marks, _marks_schema()), made / MARKS, compression="zstd")
        write_bytes(made / MODEL, model_json(*store_model(path, store)).encode())
        return len(index.ids())


def _take_over(gallery: Gallery, file: Any, path: Path) -> None:
    try:
        for batch in file.iter_batches(BATCH):
            gallery.store.marks.take_over([Mark(**row) for row in batch.to_pylist()])
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise GalleryError(f"{path} is damaged; the items are imported, marks are not: {error}.") from None


def _marks_schema() -> Any:
    kinds = {"int": pa.int64(), "int | None": pa.int64(), "bool": pa.bool_(), "float": pa.float64()}
    return pa.schema([pa.field(one.name, kinds.get(str(one.type), pa.string())) for one in fields(Mark)])


def _no_export(source: Path) -> str:
    what = "holds no exported gallery" if source.exists() else "is not there"
    own = " It holds a gallery itself, or a backup: see zoo gallery backup and restore." if is_gallery(source) else ""
    return f"{source} {what}. zoo gallery export writes one, with {ITEMS} and {MODEL}.{own}"


def _schema(dim: int) -> Any:
    text = ("source", "label", "metadata", "content_sha256", "added_at", "key")
    return pa.schema(
        [
            pa.field("id", pa.int64()),
            *(pa.field(name, pa.string()) for name in text),
            pa.field("embedding", pa.list_(pa.float32(), dim)),
            pa.field("thumbnail", pa.binary()),
            pa.field("thumbnail_type", pa.string()),
        ]
    )


def _table(rows: Sequence[Row], dim: int) -> Any:
    values = [
        {
            "id": item.id,
            "source": item.source,
            "label": item.label,
            "metadata": json.dumps(item.metadata, ensure_ascii=False),
            "content_sha256": item.content_sha256,
            "added_at": item.added_at,
            "key": item.key,
            "embedding": embedding,
            "thumbnail": thumbnail.data,
            "thumbnail_type": thumbnail.media_type,
        }
        for item, embedding, thumbnail in rows
    ]
    return pa.Table.from_pylist(values, _schema(dim))


def _new_item(row: dict[str, Any]) -> NewItem:
    return NewItem(
        source=row["source"],
        embedding=np.array(row["embedding"], np.float32),
        thumbnail=Thumbnail(row["thumbnail"], row["thumbnail_type"]),
        content_sha256=row["content_sha256"],
        label=row["label"],
        metadata=json.loads(row["metadata"]),
        added_at=row["added_at"],
        key=row.get("key"),  # exports of older versions have none
    )


def _open(path: Path) -> Any:
    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise GalleryError(f"{path} cannot be read as an exported gallery: {error}.") from None


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, BATCH)):
        yield some
