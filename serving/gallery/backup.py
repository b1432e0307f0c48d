"""Backup, restore and verification of a gallery."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from serving.gallery.calibration import calibration_record, take_over_calibration
from serving.gallery.database import connect, gallery_error
from serving.gallery.gallery import STORE, VectorGallery, is_gallery
from serving.gallery.index_files import check_facts, check_hashes, read_facts, read_plan
from serving.gallery.originals import copy_folders
from serving.gallery.store import MODEL, Store
from serving.gallery.tune import QUERIES as SAMPLED
from serving.gallery.tune import SearchableIndex, nearest_in_blocks
from serving.gallery.types import Block, Item, NewItem, StoreChanges, Thumbnail, equal_blocks, is_unit
from zoo.console import count
from zoo.errors import GalleryError, GalleryExistsError, GalleryNotFoundError, command
from zoo.files import atomic_folder, read_json, sha256_of, write_json
from zoo.models.results import Check

QUERIES, K = 100, 10
BATCH = 1000
"""Items that are copied in one step."""

MANIFEST = "backup.json"
PAGES = 2000
"""SQLite pages, 4 KiB each, between two reports of progress."""

Progress = Callable[[int, int], None]


def verify_gallery(path: Path) -> Iterator[Check]:
    """Yield the checks of a gallery one by one, also while others write to it. Raises `GalleryNotFoundError`."""
    try:
        opened = VectorGallery.open(path)
    except GalleryNotFoundError:
        raise
    except GalleryError as error:
        yield Check("database", False, str(error))
        return
    with opened as gallery, closing(Store(path / STORE)) as store:
        problems = store.problems()
        yield Check("database", not problems, "; ".join(problems) or f"{count(store.count(), 'item')}")
        yield _items_check(store)
        try:
            embeddings, *others = _compare(gallery, store)
        except GalleryError as error:
            yield Check("embeddings", False, str(error))
            return
        yield embeddings
        yield _generation_check(path, store)
        yield from others
        if gallery.index.stats().recall is not None:
            yield _recall_check(gallery, store)


def copy_gallery(source: str | Path, target: str | Path) -> tuple[int, int]:
    """Copy a gallery to a folder or to an address in Milvus; one that is there is added to.

    Args:
        source: The gallery.
        target: Where to copy it. Items get new ids; the calibration, the folders of the images, and the places whose
            items were removed are copied.

    Returns:
        The number of items that were read, and of those that are new.
    """
    read = new = 0
    with VectorGallery.open(source) as old:
        made = (
            VectorGallery.open(target) if is_gallery(target) else VectorGallery.create(target, old.card, old.model_ref)
        )
        with made as copy:
            copy.check_model(old.card)
            folders = {place.id: place.folder for place in old.store.places()}
            rows = old.store.rows()
            while some := [_as_new(folders, *row) for row in islice(rows, BATCH)]:
                read, new = read + len(some), new + copy.add(some).new
            if (calibration := calibration_record(old)) is not None:
                take_over_calibration(copy, calibration, read)
            copy.note_removed(old.store.removed_places())
            copy_folders(old, copy)
    return read, new


def _as_new(folders: Mapping[int, str | None], item: Item, embedding: np.ndarray, thumbnail: Thumbnail) -> NewItem:
    fields = ("source", "content_sha256", "label", "metadata", "added_at", "key")
    values = {name: getattr(item, name) for name in fields}
    return NewItem(embedding=embedding, thumbnail=thumbnail, folder=folders.get(item.id), **values)


@dataclass(frozen=True)
class BackupInfo:
    """Size of a backup: items, number of its last change, bytes of its store."""

    items: int
    change: int
    bytes: int


def backup(gallery: Path, out: Path, progress: Progress = lambda done, total: None) -> BackupInfo:
    """Copy a gallery to a new folder, completely or not at all, while others read and write it.

    Args:
        gallery: The gallery folder.
        out: The new folder; the copy is checked before it takes this name.
        progress: Called with the number of pages done and in all.

    Raises:
        GalleryError: The gallery is damaged, or the copy cannot be written.
    """
    VectorGallery.open(gallery).close()  # raises if the gallery is damaged
    with _new_folder(out) as folder:
        _copy_store(gallery / STORE, folder / STORE, progress)
        shutil.copyfile(gallery / MODEL, folder / MODEL)
        info = _check_copy(folder)
        files = {name: sha256_of(folder / name) for name in (STORE, MODEL)}
        write_json(folder / MANIFEST, {"items": info.items, "change": info.change, "files": files})
    return info


def restore(copy: Path, out: Path) -> BackupInfo:
    """Create the gallery `out` from a backup, and verify it.

    Raises:
        GalleryError: A file of the backup has changed, or the gallery is not valid; `out` does not exist then.
    """
    files = _hashes(copy)
    for name in (STORE, MODEL):
        if not (copy / name).is_file() or sha256_of(copy / name) != files.get(name):
            raise GalleryError(
                f"{copy / name} is not the file that the backup wrote (its SHA-256 differs). Use another backup.",
                code="hash-mismatch",
            )
    with _new_folder(out) as folder:
        for name in (STORE, MODEL):
            shutil.copyfile(copy / name, folder / name)
            if sha256_of(folder / name) != files[name]:
                raise GalleryError(
                    f"the copy of {name} in {out.parent} differs from it; check the disk.", code="hash-mismatch"
                )
        _forget_index(folder / STORE)
        wrong = [f"{check.name}: {check.detail}" for check in verify_gallery(folder) if check.ok is False]
        if wrong:
            raise GalleryError(
                f"{copy} does not restore to a valid gallery: {'; '.join(wrong)}", code="verification-failed"
            )
        return _check_copy(folder)


def _compare(gallery: VectorGallery, store: Store) -> list[Check]:
    """Return the checks of embeddings, index and search after one change."""
    for _ in range(100):
        index = gallery.index.current()
        with store.stream_changes(0) as reading:
            if reading.number != index.change:
                continue
            checks = _compare_reading(reading, index, store)
        # Others may have written to an index that processes share.
        if checks[1].ok or store.change() == reading.number:
            return checks
    raise GalleryError("the gallery is written to without a pause; verify it when it is quieter.", code="busy")


def _compare_reading(reading: StoreChanges, index: SearchableIndex, store: Store) -> list[Check]:
    """Read all vectors of the store once, block by block, and compare the index with them."""
    wrong, equal, count = [], True, 0
    _, queries = store.embeddings([item.id for item in store.sample(QUERIES, seed=0)])
    queries = queries[is_unit(queries)]

    def unit_blocks() -> Iterator[Block]:
        nonlocal equal, count
        for ids, vectors in reading.blocks:
            count += len(ids)
            equal = equal and equal_blocks(index.vectors_of(ids), (ids, vectors))
            unit = is_unit(vectors)
            wrong.extend(ids[~unit].tolist())
            yield ids[unit], vectors[unit]

    nearest, _ = nearest_in_blocks(unit_blocks(), queries, K)
    equal = equal and count == len(index.ids())
    detail = (
        f"holds change {reading.number}"
        if equal
        else "holds other vectors than the store; run zoo gallery compact GALLERY"
    )
    checks = [
        Check("embeddings", not wrong, f"that of item {min(wrong)} has not unit length" if wrong else "unit rows"),
        Check("index", equal, detail),
    ]
    return [*checks, _search_check(index, queries, nearest)] if len(queries) else checks


def _items_check(store: Store) -> Check:
    """Check the values, key and picture of every item: a gallery of somebody else may hold anything."""
    try:
        damaged = list(islice(store.damaged_items(), BATCH))
    except GalleryError as error:
        return Check("items", False, str(error))
    if not damaged:
        return Check("items", True, "their values, keys and pictures are valid")
    (first, reason), more = damaged[0], "at least " if len(damaged) == BATCH else ""
    return Check("items", False, f"{more}{count(len(damaged), 'item')} damaged, the first item {first}: {reason}")


def _generation_check(path: Path, store: Store) -> Check:
    name = store.position()[1]
    if not name:
        return Check("generation", None, "none is written yet; searches use the store's vectors")
    try:
        check_facts(path, name, store)
        facts = read_facts(path / name)
        check_hashes(path / name, facts)
    except (OSError, ValueError, TypeError) as error:
        if store.position()[1] != name:
            return _generation_check(path, store)
        return Check("generation", False, f"{name}: {error}; run {command('gallery', 'compact', path)}")
    return Check("generation", True, f"{name}, {facts.setting.kind}, {count(facts.count, 'vector')}")


def _search_check(index: SearchableIndex, queries: np.ndarray, nearest: np.ndarray) -> Check:
    """Compare exact search of the index with the similarities of the nearest vectors in the store."""
    similarities, _ = index.search(queries, K, exact=True)
    equal = similarities.shape == nearest.shape and bool(np.allclose(similarities, nearest, atol=1e-5))
    verb = "equal" if equal else "differ from"
    return Check("search", equal, f"{count(len(queries), 'search')} {verb} exact search of the store")


def _recall_check(gallery: VectorGallery, store: Store) -> Check:
    plan = read_plan(store)
    recall = gallery.recall(plan.k) or 1.0
    is_held = recall >= plan.recall - _sampling_error(plan.recall)
    return Check("recall", is_held, f"{recall:.4f} of the {plan.k} nearest; tuned for {plan.recall}")


def _sampling_error(recall: float) -> float:
    """Return how far the recalls of two samples of queries may lie apart: three standard errors, and at least .01.

    The neighbours of a query count as one observation, as if all of them were found or none.
    """
    return max(0.01, 3 * math.sqrt(2 * recall * (1 - recall) / SAMPLED))


def _copy_store(source: Path, target: Path, progress: Progress) -> None:
    try:
        with closing(connect(source)) as old, closing(sqlite3.connect(target, isolation_level=None)) as new:
            # In a read transaction all steps see one state; otherwise each write by others would restart the copy.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM state").fetchone()
            old.backup(new, pages=PAGES, progress=lambda status, left, total: progress(total - left, total), sleep=0)
            old.execute("ROLLBACK")
            # The copy has no index files.
            new.execute("UPDATE state SET value = '' WHERE key LIKE '%generation'")
            new.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        raise GalleryError(f"the gallery cannot be copied: {gallery_error(error, source)}") from None


def _forget_index(store_path: Path) -> None:
    """Let a store name no index: a backup carries none, even if somebody else wrote a name into it."""
    with suppress(GalleryError), closing(Store(store_path)) as store:  # `verify_gallery` says what is wrong with it
        if store.position()[1]:
            store.set_generation("", "")


def _check_copy(folder: Path) -> BackupInfo:
    with closing(Store(folder / STORE)) as store:
        if problems := store.problems():
            raise GalleryError(
                f"the copy is damaged, and so is the gallery: {'; '.join(problems)}. Run zoo gallery verify.",
                code="verification-failed",
            )
        stats = store.stats()
    VectorGallery.open(folder).close()  # raises if the card is not that of the store's model
    return BackupInfo(stats.items, stats.change, (folder / STORE).stat().st_size)


def _hashes(copy: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a backup, by its manifest."""
    try:
        return dict(read_json(copy / MANIFEST)["files"])
    except (OSError, ValueError, KeyError, TypeError):
        if (copy / MANIFEST).exists():
            raise GalleryNotFoundError(f"{copy / MANIFEST} is damaged. Use another backup.") from None
    gallery, out = (copy, copy.with_name(f"{copy.name}-backup")) if is_gallery(copy) else ("GALLERY", copy)
    advice = command("gallery", "backup", gallery, out)
    raise GalleryNotFoundError(f"{copy} is not a backup: it has no {MANIFEST}. Write one: {advice}")


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GalleryExistsError(f"{out} exists and is not empty; choose a new folder.", code="already-exists")
    try:
        with atomic_folder(out) as folder:
            yield folder
    except OSError as error:
        raise GalleryError(f"{out} cannot be written: {error.strerror or error}.", code="not-writable") from None
