"""Connection to Milvus: addresses, collections, and rows read and written in pieces."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serving.gallery.types import SCHEME
from zoo.errors import BackendError, GalleryError, UsageError, missing

PORT, EMBEDDED = 19530, "gallery"
TOKEN = "ZOO_MILVUS_TOKEN"
"""Environment variable with the token of a server: user:password, or a key."""

INDEX = "ZOO_MILVUS_INDEX"
"""Environment variable with the index of collections made from now on: FLAT (exact, the default) or AUTOINDEX."""

TEXT = 65_535
"""Largest number of bytes of a text field."""

TIMEOUT, PREPARATION_TIMEOUT = 15.0, 300.0
"""Seconds after which a request to Milvus fails; to make, load or drop a collection takes longer."""

PIECE = 200
"""Rows that are written, or read whole, in one request; a row takes at most 0.1 MB and its embedding."""

IDS = 2**53
"""Ids are below this number, so that JavaScript reads them exactly."""

NAMED = 1000
"""Rows that are named by their ids in one request."""

PREPARATIONS = ("create_collection", "load_collection", "drop_collection")

SCAN = 10_000
"""Rows without embedding and thumbnail that are read in one request."""

ITEM_TEXTS = (
    "label",
    "source",
    "content_sha256",
    "added_at",
    "key",
    "folder",
    "thumbnail",
    "thumbnail_rest",
    "thumbnail_type",
)

Row = dict[str, Any]

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Address:
    """Address of a gallery in Milvus. `uri` is what pymilvus takes; `embedded` means that this process serves it."""

    text: str
    uri: str
    collection: str
    embedded: bool


def address_of(text: str) -> Address:
    """Parse milvus://host:port/collection, or milvus:///path/to/file.db for an embedded Milvus.

    Raises:
        UsageError: If it is not an address (code "invalid-value"). A password is refused, since it would be stored.
    """
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
    if wrong or not host or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", collection):
        raise UsageError(
            "this is not the address of a gallery in Milvus. Expected milvus://host:port/collection, with a name of "
            f"letters, digits and '_', or milvus:///path/to/file.db. A token goes into the variable {TOKEN}.",
            code="invalid-value",
        )
    return Address(text, f"http://{host}:{port}", collection, False)


def quoted(value: str | float | None) -> str:
    """Return a value as a literal of Milvus's expressions."""
    return json.dumps(value, ensure_ascii=False)


class Connection:
    """Connection to the Milvus of one address. Safe to use from several threads.

    Every failure is a `BackendError`; an embedded Milvus that another process has open is a `UsageError`.
    """

    def __init__(self, address: Address) -> None:
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise missing("pymilvus", "milvus") from None
        for name in ("pymilvus", "grpc._server"):  # they log each error that they raise, with a traceback
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.address = address
        token = None if address.embedded else os.environ.get(TOKEN)
        with _opening(address) if address.embedded else nullcontext():
            # An embedded Milvus refuses pymilvus's frequent pings, and gRPC then writes to stderr.
            options = {"grpc_options": {"grpc.keepalive_time_ms": 600_000}} if address.embedded else {}
            self._client: Any = self._do(MilvusClient, address.uri, **options, **({"token": token} if token else {}))

    def close(self) -> None:
        self._client.close()

    def has(self, collection: str) -> bool:
        return bool(self._do("has_collection", collection))

    def load(self, collection: str) -> None:
        """Load a collection, so that it can be searched; an embedded one must be loaded by each process."""
        self._do("load_collection", collection)

    def drop(self, collection: str) -> None:
        self._do("drop_collection", collection)

    def fields(self, collection: str) -> set[str]:
        return {str(field["name"]) for field in self._do("describe_collection", collection)["fields"]}

    def index_type(self, collection: str) -> str:
        return str((self._do("describe_index", collection, "vector") or {}).get("index_type", "FLAT"))

    def create_items(self, name: str, dim: int) -> None:
        """Create the collection of items, unless it exists."""
        kind = "FLAT" if self.address.embedded else os.environ.get(INDEX) or "FLAT"
        texts = dict.fromkeys(ITEM_TEXTS, "VARCHAR")
        self._create(name, dim, {"metadata": "JSON", "lists": "JSON", "change": "INT64", **texts}, kind)

    def create_facts(self) -> None:
        """Create the collection of facts, unless it exists. Its vectors are not used; Milvus requires some."""
        self._create(self.address.collection, 2, {"value": "JSON"}, "FLAT")

    def _create(self, name: str, dim: int, fields: dict[str, str], index_type: str) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        for field, kind in fields.items():
            schema.add_field(field, DataType[kind], **({"max_length": TEXT} if kind == "VARCHAR" else {}))
        index = self._client.prepare_index_params()
        index.add_index(field_name="vector", index_type=index_type, metric_type="IP")
        if not self.has(name):
            self._do("create_collection", name, schema=schema, index_params=index, consistency_level="Session")

    def write(self, collection: str, rows: Sequence[Row]) -> None:
        """Insert rows, or replace those with the same ids."""
        for start in range(0, len(rows), PIECE):
            self._do("upsert", collection, list(rows[start : start + PIECE]))

    def delete(self, collection: str, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), NAMED):
            self._do("delete", collection, ids=list(ids[start : start + NAMED]))

    def rows(self, collection: str, condition: str, fields: Sequence[str], strong: bool = False) -> list[Row]:
        """Return the rows that satisfy a condition, few enough for one request, in no order.

        Args:
            collection: The collection.
            condition: An expression of Milvus.
            fields: The fields of the rows.
            strong: Whether the writes of all other processes are waited for, not only those of this one.
        """
        level = "Strong" if strong else "Session"
        found = self._do("query", collection, filter=condition, output_fields=list(fields), consistency_level=level)
        return [dict(row) for row in found]

    def by_ids(
        self, collection: str, ids: Sequence[int], fields: Sequence[str], strong: bool = False
    ) -> dict[int, Row]:
        """Return the rows of those of the ids that exist."""
        size = PIECE if "thumbnail" in fields or "vector" in fields else NAMED
        pieces = [list(ids[start : start + size]) for start in range(0, len(ids), size)]
        found = [row for piece in pieces for row in self.rows(collection, f"id in {piece}", fields, strong)]
        return {int(row["id"]): row for row in found}

    def count(self, collection: str, condition: str = "") -> int:
        return int(self.rows(collection, condition or "id >= 0", ("count(*)",))[0]["count(*)"])

    def scan(
        self, collection: str, condition: str, fields: Sequence[str], size: int = SCAN, start: int = 0
    ) -> Iterator[list[Row]]:
        """Return all rows that satisfy a condition, in pieces, in the order of their ids.

        Ids are hashes, so that equal ranges of ids hold about equally many rows, and some of them are a random sample.

        Args:
            collection: The collection.
            condition: An expression of Milvus; empty for all rows.
            fields: The fields of the rows, among them "id".
            size: About how many rows are read in one request.
            start: Number of the range to begin with, modulo the number of ranges.
        """
        ranges = max(1, math.ceil(self.count(collection, condition) / size))
        for number in (*range(start % ranges, ranges), *range(start % ranges)):
            within = f"id >= {number * IDS // ranges} and id < {(number + 1) * IDS // ranges}"
            rows = self.rows(collection, f"{within} and ({condition})" if condition else within, fields)
            yield sorted(rows, key=itemgetter("id"))

    def search(
        self, collection: str, vectors: np.ndarray, k: int, condition: str, fields: Sequence[str]
    ) -> list[list[Row]]:
        """Return the fields of the `k` nearest rows of each vector, with "similarity"."""
        found = self._do(
            "search",
            collection,
            data=list(vectors),
            limit=k,
            filter=condition,
            output_fields=list(fields),
            search_params={"metric_type": "IP"},
            anns_field="vector",
            consistency_level="Session",
        )
        return [
            [{**hit["entity"], "id": int(hit["id"]), "similarity": float(hit["distance"])} for hit in hits]
            for hits in found
        ]

    def _do(self, call: Any, *args: Any, **values: Any) -> Any:
        try:
            timeout = PREPARATION_TIMEOUT if call in PREPARATIONS else TIMEOUT
            return (getattr(self._client, call) if isinstance(call, str) else call)(*args, timeout=timeout, **values)
        except Exception as error:  # pymilvus's own, gRPC's and, of an embedded one, the operating system's
            reason = str(getattr(error, "message", "") or error) or type(error).__name__
            raise BackendError(f"Milvus at {self.address.text} failed: {reason[:300]}") from None


class _LoggedErrors(logging.Filter):
    """Filter that keeps the logged errors, and keeps them out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(error)
        return error is None


@contextmanager
def _opening(address: Address) -> Iterator[None]:
    """Explain why an embedded Milvus cannot be opened: pymilvus does not say it, and milvus-lite only logs it.

    Raises:
        UsageError: If another process has the file open (code "busy").
        GalleryError: If it cannot be opened for another reason.
    """
    logged, logger = _LoggedErrors(), logging.getLogger("milvus_lite.server_manager")
    logger.addFilter(logged)
    try:
        yield
    except GalleryError as error:
        if not logged.errors:
            raise
        reason = logged.errors[-1]
        if type(reason).__name__ != "DataDirLockedError":  # older versions of milvus-lite do not have this class
            raise GalleryError(f"{error}: {reason}") from None
        raise UsageError(
            f"{address.text} is open in another process, and an embedded Milvus takes one at a time. End that process "
            "(a service, or another zoo command), or use a Milvus server: milvus://host:19530/NAME.",
            code="busy",
        ) from None
    finally:
        logger.removeFilter(logged)


def check_workers(address: str, workers: int) -> None:
    """Refuse several processes for a gallery in an embedded Milvus.

    Raises:
        UsageError: If there are several (code "conflicting-options").
    """
    if workers > 1 and address_of(address).embedded:
        raise UsageError(
            f"{address} is an embedded Milvus, which one process can open, not {workers} workers. Serve with --workers "
            "1, or use a Milvus server: milvus://host:19530/NAME.",
            code="conflicting-options",
        )
