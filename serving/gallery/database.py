"""One SQLite connection that threads share: queries, snapshots and transactions, with errors that say what to do."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving.gallery import schema
from serving.gallery.connection import connect, explained
from serving.gallery.shadow import SEEN_AS_THE_STORE
from zoo.errors import GalleryNotFoundError


class Database:
    """A gallery's file, open. `db` is for those who are within a snapshot or a transaction."""

    def __init__(self, path: Path, other: bool = False) -> None:
        """other: with the tables of its other model in place of the present ones, to be read.

        Raises `GalleryError` for a file that is missing, damaged or of a newer version.
        """
        self.path, self._lock = path, threading.RLock()
        if not path.is_file():
            raise GalleryNotFoundError(f"{path} does not exist.")
        with self._explained():
            self.db = connect(path)
        try:
            with self._explained():
                schema.check_version(self.db, path)
                # FULL: an acknowledged write survives a power cut as well as a killed process.
                self.db.executescript("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
                if other:
                    self.db.executescript(SEEN_AS_THE_STORE)
        except BaseException:
            self.db.close()
            raise

    def close(self) -> None:
        with self._lock:
            self.db.close()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            return self.db.execute(sql, values).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one state of the file."""
        with self._lock, self._explained():
            if self.db.in_transaction:
                yield
                return
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                self.db.execute("ROLLBACK")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """What is written inside is there at its end, all of it; nothing is where it raises."""
        with self._lock, self._explained():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
