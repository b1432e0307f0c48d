"""Backup, restore and verification of a gallery; marks as training pairs."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.backends import backend_of
from serving.gallery.database import connect, gallery_error
from serving.gallery.feedback import Mark
from serving.gallery.gallery import MODEL, STORE, Gallery
from serving.gallery.index_files import NO_GENERATION, check_hashes, read_facts, read_plan
from serving.gallery.store import Store
from serving.gallery.tune import SearchableIndex, nearest_in_blocks
from serving.gallery.types import Block, ChangeStream, equal_blocks, is_unit
from zoo.errors import GalleryError, GalleryExistsError, GalleryNotFoundError, UsageError, missing
from zoo.files import atomic_folder, atomic_path, sha256_of, write_json
from zoo.models.results import Check

QUERIES, K = 100, 10
MANIFEST = "backup.json"
PAGES = 2000
"""Of SQLite, 4 KiB each, copied between two reports of progress."""

Progress = Callable[[int, int], None]
_COLUMNS: dict[str, tuple[str, Callable[[Mark], Any]]] = {
    "query_source": ("string", lambda mark: mark.query_source),
    "query_sha256": ("string", lambda mark: mark.query),
    "query_item": ("int64", lambda mark: mark.query_item),
    "query_label": ("string", lambda mark: mark.query_label),
    "result_source": ("string", lambda mark: mark.source),
    "result_sha256": ("string", lambda mark: mark.content_sha256),
    "result_item": ("int64", lambda mark: mark.item),
    "result_label": ("string", lambda mark: mark.label),
    "same": ("int8", lambda mark: int(mark.same)),
    "similarity": ("float64", lambda mark: mark.similarity),
    "model": ("string", lambda mark: mark.model),
    "marked_at": ("string", lambda mark: mark.marked_at),
}
"""Of each column its Arrow type, and what it holds of a mark."""


def verify_gallery(path: Path) -> Iterator[Check]:
    """Every check of a gallery in turn, against writers at work too. Raises `GalleryNotFoundError`."""
    try:
        opened = Gallery.open(path)
    except GalleryNotFoundError:
        raise
    except GalleryError as error:
        yield Check("database", False, str(error))
        return
    with opened as gallery, Store(path / STORE).closing() as store:
        problems = store.problems()
        yield Check("database", not problems, "; ".join(problems) or f"{store.count():,} items")
        try:
            found = _compared(gallery, store)
        except GalleryError as error:
            yield Check("embeddings", False, str(error))
            return
        wrong = found.not_unit
        yield Check(
            "embeddings", wrong is None, "unit rows" if wrong is None else f"of item {wrong} not of unit length"
        )
        in_milvus = gallery.index.stats().kind == "milvus"
        yield _in_milvus(path, len(found.index.ids())) if in_milvus else _files(path, store)
        other = "holds other vectors than the store; run zoo gallery compact"
        yield Check("index", found.equal, f"holds change {found.number}" if found.equal else other)
        if len(found.queries):
            yield _exact(found)
        if gallery.index.stats().recall is not None:
            yield _recall(gallery, store)


@dataclass(frozen=True)
class Copied:
    """`change`: the number of the last change that the copy holds; `bytes`: of its store."""

    items: int
    change: int
    bytes: int


def backup(gallery: Path, out: Path, progress: Progress = lambda done, total: None) -> Copied:
    """Copy a gallery to the new folder `out`, whole or not at all, while others read and write it.

    progress: called with the pages done and the pages in all. The copy is checked before it takes its place. Raises
    `GalleryError`.
    """
    Gallery.open(gallery).close()  # says what is wrong with it, if anything
    with _new_folder(out) as folder:
        _copy_store(gallery / STORE, folder / STORE, progress)
        shutil.copyfile(gallery / MODEL, folder / MODEL)
        copied = _whole(folder)
        files = {name: sha256_of(folder / name) for name in (STORE, MODEL)}
        write_json(folder / MANIFEST, {"items": copied.items, "change": copied.change, "files": files})
    return copied


def restore(copy: Path, out: Path) -> Copied:
    """Make the new gallery `out` of a copy. Its files must be those that were written; what came of them is verified.

    Raises `GalleryError` that names what is not right; `out` is then not there.
    """
    files = _manifest(copy)["files"]
    for name in (STORE, MODEL):
        if not (copy / name).is_file() or sha256_of(copy / name) != files.get(name):
            raise GalleryError(f"{copy / name} is not the file that the backup wrote (SHA-256 differs); use another.")
    with _new_folder(out) as folder:
        for name in (STORE, MODEL):
            shutil.copyfile(copy / name, folder / name)
            if sha256_of(folder / name) != files[name]:
                raise GalleryError(f"{name} did not arrive in {out.parent} as it was sent; the disk is at fault.")
        wrong = [f"{check.name}: {check.detail}" for check in verify_gallery(folder) if check.ok is False]
        if wrong:
            raise GalleryError(f"{copy} does not give a whole gallery: {'; '.join(wrong)}")
        return _whole(folder)


def check_file(file: Path, replace: bool) -> None:
    """Raise `UsageError` for a name that pairs are not written to, and for a file that is there, unless `replace`."""
    _writer(file)
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name the file in it.")
    if file.exists() and not replace:
        raise UsageError(f"{file} is there already. Name another file, or write over it with --replace.")


def export_pairs(gallery: Gallery, file: Path) -> int:
    """Write all marks to `file`, whose name ends in .csv or .parquet; how many there are."""
    write = _writer(file)
    try:
        with atomic_path(file) as made:
            return write(made, ([value(mark) for _, value in _COLUMNS.values()] for mark in gallery.store.marks.all()))
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}.") from None


@dataclass(frozen=True)
class _Compared:
    """Store and index after change `number`.

    not_unit: an item whose embedding is not of unit length; equal: whether the index holds what the store does;
    queries: float32 [q, dim], some of the store's; nearest: float32 [q, k], the similarities of their nearest in it.
    """

    number: int
    index: SearchableIndex
    not_unit: int | None
    equal: bool
    queries: np.ndarray
    nearest: np.ndarray


def _compared(gallery: Gallery, store: Store) -> _Compared:
    for _ in range(100):
        index = gallery.index.current()
        with store.stream_changes(0) as whole:
            if whole.number != index.change:
                continue
            found = _look_through(whole, index, store)
        # An index that processes share may have been written to.
        if found.equal or store.change() == found.number:
            return found
    raise GalleryError("the gallery is written to without a pause; verify it when it is quieter.")


def _look_through(whole: ChangeStream, index: SearchableIndex, store: Store) -> _Compared:
    """All of the store's vectors once, block by block."""
    wrong, equal, count = [], True, 0
    _, queries = store.embeddings([item.id for item in store.sample(QUERIES, seed=0)])
    queries = queries[is_unit(queries)]

    def good() -> Iterator[Block]:
        nonlocal equal, count
        for ids, vectors in whole.blocks:
            count += len(ids)
            equal = equal and equal_blocks(index.vectors_of(ids), (ids, vectors))
            unit = is_unit(vectors)
            wrong.extend(ids[~unit].tolist())
            yield ids[unit], vectors[unit]

    nearest, _ = nearest_in_blocks(good(), queries, K)
    equal = equal and count == len(index.ids())
    return _Compared(whole.number, index, min(wrong, default=None), equal, queries, nearest)


def _files(path: Path, store: Store) -> Check:
    name = store.position()[1]
    if not name or name.startswith(NO_GENERATION):
        return Check("generation", None, "none was written yet; searches use the store's vectors")
    try:
        facts = read_facts(path / name)
        check_hashes(path / name, facts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if store.position()[1] != name:
            return _files(path, store)
        return Check("generation", False, f"{name}: {error}; run zoo gallery compact")
    return Check("generation", True, f"{name}, {facts.setting.kind}, {facts.count:,} vectors")


def _in_milvus(path: Path, count: int) -> Check:
    return Check("generation", None, f"there are no files of an index here; {backend_of(path)} holds {count:,} vectors")


def _exact(found: _Compared) -> Check:
    """Exact search of the gallery beside the exact core over the store's vectors."""
    got, _ = found.index.search(found.queries, K, exact=True)
    equal = got.shape == found.nearest.shape and bool(np.allclose(got, found.nearest, atol=1e-5))
    what = "equal" if equal else "differ from"
    return Check("search", equal, f"{len(found.queries)} searches {what} exact search of the store")


def _recall(gallery: Gallery, store: Store) -> Check:
    plan = read_plan(store)
    recall = gallery.recall(plan.k) or 1.0
    return Check(
        "recall", recall >= plan.recall - 0.01, f"{recall:.4f} of the {plan.k} nearest; tuned for {plan.recall}"
    )


def _copy_store(source: Path, target: Path, progress: Progress) -> None:
    try:
        with closing(connect(source)) as old, closing(sqlite3.connect(target, isolation_level=None)) as new:
            # In a read transaction all steps see one state; without, each write of another would start them anew.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM state").fetchone()
            old.backup(new, pages=PAGES, progress=lambda status, left, total: progress(total - left, total), sleep=0)
            old.execute("ROLLBACK")
            # The index that it names stays behind.
            new.execute("UPDATE state SET value = '' WHERE key LIKE '%generation'")
            new.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        raise GalleryError(f"the gallery cannot be copied: {gallery_error(error, source)}") from None


def _whole(folder: Path) -> Copied:
    with Store(folder / STORE).closing() as store:
        if problems := store.problems():
            raise GalleryError(
                f"the copy is damaged, so the gallery is: {'; '.join(problems)}. Run zoo gallery verify."
            )
        stats = store.stats()
    Gallery.open(folder).close()  # the card is the store's
    return Copied(stats.items, stats.change, (folder / STORE).stat().st_size)


def _manifest(copy: Path) -> dict[str, Any]:
    try:
        found = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
        return {"files": dict(found["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise GalleryNotFoundError(f"{copy} is no backup; zoo gallery backup writes one, with {MANIFEST}.") from None


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GalleryExistsError(f"{out} exists and is not empty; choose a new folder.")
    try:
        with atomic_folder(out) as folder:
            yield folder
    except OSError as error:
        raise GalleryError(f"{out} cannot be written: {error.strerror or error}.") from None


def _writer(file: Path) -> Callable[[Path, Iterator[list[Any]]], int]:
    write = {".csv": _write_csv, ".parquet": _write_parquet}.get(file.suffix.lower())
    if write is None:
        raise UsageError(f"{file}: pairs are written as .csv or as .parquet.")
    return write


def _write_csv(file: Path, rows: Iterator[list[Any]]) -> int:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(_COLUMNS)
        return sum(1 for row in rows if writer.writerow(row))


def _write_parquet(file: Path, rows: Iterator[list[Any]]) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    schema = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
    table = pa.Table.from_pylist([dict(zip(_COLUMNS, row, strict=True)) for row in rows], schema)
    parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)
