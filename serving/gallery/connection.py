"""A connection to a gallery's SQLite file, also where nothing can be written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from zoo.errors import GalleryError

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""The primary codes of errors that come of changed bytes."""


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading and writing; for reading alone in a folder that cannot be written to.

    SQLite reads a file in WAL mode with the help of two files beside it. Where these are not there and cannot be
    made, on a read-only file system say, the file is read as one that nobody changes: what its owner writes later is
    not seen. Raises `GalleryError` if it can be read only together with a log that is left beside it.
    """
    path = path.resolve()
    try:
        return _open(path, "mode=rw")
    except sqlite3.OperationalError:
        if _is_writable(path.parent):
            raise
    log = path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:
        raise GalleryError(
            f"{path.parent} cannot be written to, and {log.name} holds changes that are not in {path.name} yet. Open "
            "the gallery once where its folder can be written to, or copy the whole folder to such a place."
        )
    return _open(path, "mode=ro&immutable=1")


def explained(error: sqlite3.Error, path: Path) -> GalleryError:
    """The error of ours for one of SQLite's at a gallery's file."""
    if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in DAMAGE:
        return GalleryError(
            f"{path}, which holds all of the gallery, is damaged ({error}). zoo gallery verify {path.parent} says what "
            "can still be read. Make it whole from a backup, zoo gallery restore COPY NEW, or anew from its images, "
            "zoo index."
        )
    return GalleryError(f"{path}: {error}.")


def _open(path: Path, options: str) -> sqlite3.Connection:
    uri = f"{path.as_uri()}?{options}"
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
    try:
        # Only now does SQLite look at the file and those beside it.
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
