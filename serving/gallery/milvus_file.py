"""Opening an embedded Milvus, whose file one process has open at a time.

pymilvus says only that it did not open; milvus-lite logs why, with a traceback, which is caught here and put in words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from serving.gallery.milvus_address import Address
from zoo.errors import GalleryError, UsageError

_LOGGER = "milvus_lite.server_manager"
_LOCKED = "DataDirLockedError"
"""The name of milvus-lite's error where another process has the file; older versions do not have the class."""
ELSEWHERE = "put the vectors into a Milvus server (milvus://host:19530/NAME) or into FAISS: zoo gallery backend"


class _Caught(logging.Filter):
    """Keeps the errors that are logged, and keeps them out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(error)
        return error is None


@contextmanager
def opening(address: Address) -> Iterator[None]:
    """Within it the file is opened. Raises `UsageError` where another process has it, else `GalleryError`."""
    caught, logger = _Caught(), logging.getLogger(_LOGGER)
    logger.addFilter(caught)
    try:
        yield
    except GalleryError as error:
        if not caught.errors:
            raise
        raise _refused(address, caught.errors[-1], error) from None
    finally:
        logger.removeFilter(caught)


def _refused(address: Address, reason: BaseException, said: GalleryError) -> UsageError | GalleryError:
    if type(reason).__name__ != _LOCKED:
        return GalleryError(f"{said}: {reason}")
    return UsageError(
        f"{address.text} is open in another process, and an embedded Milvus takes one at a time. End that one (a "
        f"service, or another zoo command), or {ELSEWHERE}."
    )
