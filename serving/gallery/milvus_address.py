"""Where a gallery's vectors lie in Milvus: milvus://host:port/collection, or milvus:///path/to/file.db, embedded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from zoo.errors import UsageError

SCHEME, PORT, EMBEDDED = "milvus", 19530, "gallery"


@dataclass(frozen=True)
class Address:
    """`uri`: as pymilvus takes it, of a server or a file; `embedded`: whether this process is the server."""

    text: str
    uri: str
    collection: str
    embedded: bool


def address_of(text: str) -> Address:
    """Raises `UsageError` for what is no address; one with a password, which would be written down, is none."""
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, 0
    wrong = parts.scheme != SCHEME or parts.query or parts.fragment or "@" in parts.netloc
    if not wrong and not parts.netloc and parts.path.endswith(".db"):
        path = Path(parts.path).expanduser()
        return Address(f"{SCHEME}://{path}", str(path), EMBEDDED, True)
    collection = parts.path.removeprefix("/")
    if wrong or not host or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
        raise UsageError(
            "this is no address of a collection; expected milvus://host:port/collection, whose name has letters, "
            "digits and '_', or milvus:///path/to/file.db. A key goes into the environment variable ZOO_MILVUS_TOKEN."
        )
    return Address(text, f"http://{host}:{port}", collection, False)
