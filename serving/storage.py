"""What is said to a client where the store or the vectors of a gallery cannot be had: full, read-only, taken, away.

None of it is a failure of the service, and none of it is the client's mistake.
"""

from __future__ import annotations

import errno
import sqlite3
from http import HTTPStatus

from zoo.errors import BackendError, GalleryError

PAUSE = 5
"""Seconds after which it is worth while to try again."""
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
"""Of the errors of input and output those that no write made."""
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Refusal = tuple[HTTPStatus, str, str, dict[str, str]]
"""Status, code, message and headers, as `RefusedError` takes them. The message names no path and no address."""

STORAGE_FULL: Refusal = (
    HTTPStatus.INSUFFICIENT_STORAGE,
    "storage_full",
    "The service's disk is full, or does not take what is written. Who runs the service must see to it.",
    {},
)
READ_ONLY: Refusal = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "read_only_storage",
    "The gallery lies where the service cannot write. It can be searched; who runs the service must see to it.",
    {},
)
BUSY: Refusal = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "storage_busy",
    f"Somebody else is writing to the gallery all the time. Try again in {PAUSE} seconds.",
    {"Retry-After": str(PAUSE)},
)
AWAY: Refusal = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "index_unavailable",
    f"The gallery's vectors lie in a database that does not answer as it should. Try again in {PAUSE} seconds.",
    {"Retry-After": str(PAUSE)},
)


def storage_refusal(error: BaseException) -> Refusal | None:
    """What an error of a store stands for; None for any other, which is a failure."""
    if isinstance(error, BackendError):
        return AWAY
    reason = error.__cause__ if isinstance(error, GalleryError) else error
    if isinstance(reason, sqlite3.Error):
        return _of_sqlite(getattr(reason, "sqlite_errorcode", None) or 0)
    if isinstance(reason, OSError):
        return STORAGE_FULL if reason.errno in _NO_SPACE else READ_ONLY if reason.errno == errno.EROFS else None
    return None


def _of_sqlite(code: int) -> Refusal | None:
    """code: SQLite's extended one, of which the last byte is the primary."""
    primary = code & 0xFF
    if primary in _BUSY:
        return BUSY
    if primary in _READ_ONLY:
        return READ_ONLY
    return STORAGE_FULL if primary in _FULL and code not in _UNREADABLE else None
