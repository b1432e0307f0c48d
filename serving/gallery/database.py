"""Connections, snapshots and transactions of a gallery's SQLite file.

One connection writes. Readers have connections of their own and never wait for the writer, because the file is in WAL
mode. Once the file was moved or replaced, it is neither read nor written any more.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from serving.gallery import schema
from serving.gallery.types import LISTED
from zoo.errors import GalleryError, GalleryMovedError, GalleryNotFoundError, ModelChangedError, command

DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""Primary codes of SQLite's errors for changed bytes."""


FULL_CODES = (sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP)
"""Extended codes of SQLite's errors for a log whose index cannot be made."""

_DISTRUST = "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
"""The file may be of somebody else: no functions with side effects in its schema, and damaged pages are noticed.

SQLite's defensive mode would be a third guard, which Python offers from 3.12 on only.
"""

Row = tuple[Any, ...]
C = TypeVar("C", bound=sqlite3.Connection)


class _FrozenConnection(sqlite3.Connection):
    """A connection that reads a file as one that nobody changes, without the files that SQLite needs beside it.

    Attributes:
        full: SQLite's error if these could not be written because the disk is full; None on a read-only one.
    """

    full: sqlite3.Error | None = None


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading and writing; only for reading if its folder is read-only, or its disk full.

    SQLite needs two files beside one in WAL mode. Where they do not exist and cannot be made, the connection is a
    `_FrozenConnection`.

    Raises:
        GalleryError: If the folder cannot be written to and a log holds changes (code "not-writable").
    """
    path = path.resolve()
    try:
        return _connect(path, "mode=rw", sqlite3.Connection)
    except sqlite3.OperationalError as error:
        full = error if _is_full(error) else None
        if full is None and os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise
    if _log_size(path):
        raise GalleryError(
            f"{path.parent} cannot be written to, and {path.name}-wal holds changes that {path.name} lacks. Open the "
            "gallery once where its folder can be written to, or copy the whole folder to such a place.",
            code="not-writable",
        )
    db = _connect(path, "mode=ro&immutable=1", _FrozenConnection)
    db.full = full
    return db


def _is_full(error: sqlite3.Error) -> bool:
    """Return whether an error is that of a full disk, also where SQLite's index of its log cannot be written there."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code & 0xFF == sqlite3.SQLITE_FULL or code in FULL_CODES


def _log_size(path: Path) -> int:
    """Return the number of bytes of changes that are not in the file yet."""
    log = path.with_name(f"{path.name}-wal")
    return log.stat().st_size if log.is_file() else 0


def _connect(path: Path, options: str, kind: type[C]) -> C:
    uri = f"{path.as_uri()}?{options}"
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False, factory=kind)
    try:
        db.executescript(_DISTRUST)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # only now does SQLite open the files
    except BaseException:
        db.close()
        raise
    return db


def gallery_error(error: sqlite3.Error, path: Path) -> GalleryError:
    """Return our error for one of SQLite's about the file `path`.

    Its code is "damaged-gallery", "read-only-gallery", "disk-full", or "database" for all others.
    """
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in DAMAGE_CODES:
        return GalleryError(
            f"{path}, which holds the whole gallery, is damaged ({error}). Restore a backup (zoo gallery restore COPY "
            "NEW), or index the images again (zoo index MODEL DIR --out NEW). See what can still be read with: "
            f"{command('gallery', 'verify', path.parent)}",
            code="damaged-gallery",
        )
    if _is_full(error):
        return GalleryError(f"{path}: the disk is full, so that nothing can be written ({error}).", code="disk-full")
    codes = {sqlite3.SQLITE_READONLY: "read-only-gallery"}
    return GalleryError(f"{path}: {error}.", code=codes.get(primary, "database"))


class Database:
    """An open gallery file. Safe to use from several threads.

    Attributes:
        initial_state: The table `state` when the file was opened, read at once.
        fingerprint: The model of the embeddings then; None if it has no embeddings.
    """

    def __init__(self, path: Path, views: str = "") -> None:
        """Open an existing file; each connection runs the statements in `views` first. Raises `GalleryError`."""
        self.path, self._views = path.absolute(), views
        self._lock, self._thread, self._closed = threading.RLock(), threading.local(), False
        self._idle = deque[sqlite3.Connection]()
        if not path.is_file():
            raise GalleryNotFoundError(f"{path} does not exist.")
        self._file = _file_id(path)
        with self._translated():
            self._writer = self._open()
        if isinstance(self._writer, _FrozenConnection):
            self._file = _file_id(path, frozen=True)
        try:
            with self._translated():
                self._prepare_writer()
            self.initial_state: dict[str, Any] = dict(self.query("SELECT key, value FROM state"))
            self.fingerprint: str | None = self.initial_state.get("fingerprint")
        except BaseException:
            self._writer.close()
            raise

    def _prepare_writer(self) -> None:
        # FULL: an acknowledged write survives a power cut as well as a killed process.
        self._writer.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")

    def close(self) -> None:
        """Close all connections; threads that are reading finish first."""
        with self._lock:
            self._closed = True
            self._writer.close()
            self._close_idle()

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of the snapshot or transaction that this thread is in."""
        connection: sqlite3.Connection = self._thread.db
        return connection

    def query(self, sql: str, *values: Any) -> list[Row]:
        with self._translated(), self._reading() as db:
            return db.execute(sql, values).fetchall()

    def rows_by_id(self, columns: str, ids: Iterable[int], table: str = "items", key: str = "id") -> list[Row]:
        """Return columns of the rows with these ids that exist, in no order."""
        return self.query(f"SELECT {columns} FROM {table} WHERE {key} IN {LISTED}", json.dumps(list(ids)))

    @contextmanager
    def snapshot(self, check_model: bool = False) -> Iterator[None]:
        """Make all reads inside see one state of the file.

        Args:
            check_model: Whether to call `check_model` first.
        """
        with nullcontext() if self._connection() else self._new_snapshot():
            if check_model:
                self.check_model()
            yield

    @contextmanager
    def _new_snapshot(self) -> Iterator[None]:
        with self._translated(), self._reading() as db:
            db.execute("BEGIN")
            try:
                with self._using(db):
                    yield
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def transaction(self, check_model: bool = False) -> Iterator[sqlite3.Connection]:
        """Write all that is written inside, or nothing if the block raises. A transaction may contain others.

        Args:
            check_model: Whether to call `check_model` first.
        """
        with nullcontext() if self._connection() is self._writer else self._new_transaction():
            if check_model:
                self.check_model()
            yield self._writer

    @contextmanager
    def _new_transaction(self) -> Iterator[None]:
        with self._lock, self._translated():
            self._check_file()
            self._thaw()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                with self._using(self._writer):
                    yield
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _thaw(self) -> None:
        """Open the file for writing if its disk was full before. Raises `sqlite3.Error` if it still is."""
        if not isinstance(self._writer, _FrozenConnection) or self._writer.full is None:
            return
        again = self._open()
        if isinstance(again, _FrozenConnection):
            again.close()
            raise again.full or self._writer.full
        self._writer.close()
        self._writer, self._file = again, self._file[:2]
        self._prepare_writer()
        self._close_idle()

    def check_model(self) -> None:
        """Raise `ModelChangedError` if the embeddings are of another model than when the file was opened."""
        rows = self.query("SELECT value FROM state WHERE key = 'fingerprint'")
        self.check_fingerprint(rows[0][0] if rows else None)

    def check_fingerprint(self, present: object) -> None:
        if present != self.fingerprint:
            raise ModelChangedError(
                f"{self.path.parent} was given another model since it was opened. Open it again with that model."
            )

    def _connection(self) -> sqlite3.Connection | None:
        return getattr(self._thread, "db", None)

    @contextmanager
    def _using(self, db: sqlite3.Connection) -> Iterator[None]:
        before, self._thread.db = self._connection(), db
        try:
            yield
        finally:
            self._thread.db = before

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection that this thread uses, or one that is idle."""
        used = self._connection()
        if used is not None:
            yield used
            return
        if self._closed:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        self._check_file()
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._open()
            db.execute("PRAGMA query_only = ON")
        try:
            yield db
        finally:
            if isinstance(db, _FrozenConnection) == isinstance(self._writer, _FrozenConnection):
                self._idle.append(db)
            else:
                db.close()
            if self._closed:
                self._close_idle()

    def _check_file(self) -> None:
        expected = self._file
        if _file_id(self.path, frozen=len(expected) > 2) != expected:
            raise GalleryMovedError(
                f"the gallery {self.path.parent.name} was moved, removed or replaced by another while it was open, or "
                "changed while it could only be read."
            )

    def _open(self) -> sqlite3.Connection:
        db = connect(self.path)
        try:
            schema.check_version(db, self.path)
            db.executescript(self._views)
        except BaseException:
            db.close()
            raise
        return db

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise gallery_error(error, self.path) from error


def _file_id(path: Path, frozen: bool = False) -> tuple[int, ...]:
    """Return device and inode of a file, and if it is read as frozen what a change changes; () if it does not exist."""
    try:
        status = path.stat()
        changing = (status.st_size, status.st_mtime_ns, _log_size(path)) if frozen else ()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, *changing
