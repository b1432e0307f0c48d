"""Copies of a gallery that is in use, and galleries from copies.

A copy is a folder with gallery.sqlite, model.json and backup.json, which says what the two are. It holds the store as
it was at one moment, by SQLite's online backup, whatever is written meanwhile. The index is left out: it is derived,
and a restored gallery makes its own.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.gallery.binding import MODEL
from serving.gallery.connection import connect, explained
from serving.gallery.gallery import STORE, Gallery
from serving.gallery.store import Store
from serving.gallery.verification import verify_gallery
from zoo.errors import GalleryError, GalleryExistsError, GalleryNotFoundError
from zoo.files import atomic_folder, sha256_of, write_json

MANIFEST = "backup.json"
PAGES = 2000
"""Of SQLite, 4 KiB each, copied between two reports of progress."""

Progress = Callable[[int, int], None]


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
        raise GalleryError(f"the gallery cannot be copied: {explained(error, source)}") from None


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
