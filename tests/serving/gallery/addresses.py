"""Addresses of galleries for tests: folders, embedded Milvus, and a Milvus server where ZOO_TEST_MILVUS names one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.gallery.gallery import delete_gallery
from zoo.errors import GalleryNotFoundError

SERVER = os.environ.get("ZOO_TEST_MILVUS", "")
"""host:port of a Milvus server; the tests make and drop collections of their own."""

FOLDER, EMBEDDED, ON_SERVER = "folder", "embedded", "server"
MILVUS = [EMBEDDED, *([ON_SERVER] if SERVER else [])]


@contextmanager
def new_addresses(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Give a function that returns new addresses, whose galleries are dropped at the end."""
    made: list[str] = []

    def new_address() -> str:
        name = f"zoo_test_{secrets.token_hex(4)}"
        address = {
            FOLDER: f"{folder}/{name}",
            EMBEDDED: f"milvus://{folder}/{name}.db",
            ON_SERVER: f"milvus://{SERVER}/{name}",
        }[kind]
        made.append(address)
        return address

    yield new_address
    for address in made if kind == ON_SERVER else ():
        with suppress(GalleryNotFoundError):
            delete_gallery(address)
