"""Connections, snapshots and transactions of a gallery's SQLite file.

One connection writes. Readers have their own connections, which never wait for a writer, because the file is in WAL
mode. If the file is moved or replaced while it is open, it is neither read nor written any more.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving.gallery import schema
from serving.gallery.staging import STAGED_VIEWS
from zoo.errors import GalleryError, GalleryMovedError, GalleryNotFoundError

DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
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


def gallery_error(error: sqlite3.Error, path: Path) -> GalleryError:
    """The error of ours for one of SQLite's at a gallery's file."""
    if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in DAMAGE_CODES:
        return GalleryError(
            f"{path}, which holds all of the gallery, is damaged ({error}). zoo gallery verify {path.parent} says what "
            "can still be read. Make it whole from a backup, zoo gallery restore COPY NEW, or anew from its images, "
            "zoo index."
        )
    return GalleryError(f"{path}: {error}.")


class Database:
    """A gallery's file, open."""

    def __init__(self, path: Path, other: bool = False) -> None:
        """other: with the tables of its other model in place of the present ones, to be read.

        Raises `GalleryError` for a file that is missing, damaged or of a newer version. Later whatever reads or writes
        raises `GalleryMovedError` once the file is not there any more.
        """
        self.path, self._other = path.absolute(), other
        self._lock, self._held, self._closed = threading.RLock(), threading.local(), False
        self._idle = deque[sqlite3.Connection]()
        if not path.is_file():
            raise GalleryNotFoundError(f"{path} does not exist.")
        self._file = _identity(path)
        with self._explained():
            self._writer = self._open()
        try:
            with self._explained():
                # FULL: an acknowledged write survives a power cut as well as a killed process.
                self._writer.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
        except BaseException:
            self._writer.close()
            raise

    def close(self) -> None:
        """Those who are reading still finish."""
        with self._lock:
            self._closed = True
            self._writer.close()
            self._close_idle()

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of the snapshot or the transaction that this thread is within."""
        held: sqlite3.Connection = self._held.db
        return held

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._explained(), self._reading() as db:
            return db.execute(sql, values).fetchall()

    def rows_by_id(
        self, columns: str, ids: Sequence[int], table: str = "items", key: str = "id"
    ) -> Iterator[tuple[Any, ...]]:
        """These columns of the rows of these ids that exist; a statement takes only so many values at once."""
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            found = f"{key} IN ({', '.join('?' * len(some))})"
            yield from self.query(f"SELECT {columns} FROM {table} WHERE {found}", *some)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one state of the file."""
        if self._present() is not None:
            yield
            return
        with self._explained(), self._reading() as db:
            db.execute("BEGIN")
            try:
                with self._holding(db):
                    yield
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """What is written inside is there at its end, all of it; nothing is where it raises."""
        with self._lock, self._explained():
            self._check_there()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                with self._holding(self._writer):
                    yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def nested_transaction(self) -> Iterator[sqlite3.Connection]:
        """The transaction that this thread is within, or one of its own."""
        if self._present() is self._writer:
            yield self._writer
            return
        with self.transaction() as db:
            yield db

    def _present(self) -> sqlite3.Connection | None:
        return getattr(self._held, "db", None)

    @contextmanager
    def _holding(self, db: sqlite3.Connection) -> Iterator[None]:
        before, self._held.db = self._present(), db
        try:
            yield
        finally:
            self._held.db = before

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection that this thread holds, or one that nobody reads with now."""
        present = self._present()
        if present is not None:
            yield present
            return
        if self._closed:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        self._check_there()
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._open()
            db.execute("PRAGMA query_only = ON")
        try:
            yield db
        finally:
            self._idle.append(db)
            if self._closed:
                self._close_idle()

    def _check_there(self) -> None:
        if _identity(self.path) != self._file:
            raise GalleryMovedError(
                f"the gallery {self.path.parent.name} was moved, removed or exchanged for another while it was open."
            )

    def _open(self) -> sqlite3.Connection:
        db = connect(self.path)
        try:
            schema.check_version(db, self.path)
            if self._other:
                db.executescript(STAGED_VIEWS)
        except BaseException:
            db.close()
            raise
        return db

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise gallery_error(error, self.path) from error


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


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file that is there: device and inode; None of none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
