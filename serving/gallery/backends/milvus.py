"""Vectors of a gallery in a Milvus collection.

SQLite stays the truth. Before it searches, a process brings the collection up to the store's last change, under a lock
that the processes of a machine share. The properties of the collection name the gallery and the change it has reached.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import NO_ROW, Index, Neighbours, top_k
from serving.gallery.index_files import GenerationFacts
from serving.gallery.store import Store
from serving.gallery.tune import IndexMeasurement
from serving.gallery.types import Block, IndexStats, equal_blocks
from zoo.errors import BackendError, GalleryError, UsageError, missing
from zoo.files import locked

SCHEME, PORT, EMBEDDED = "milvus", 19530, "gallery"
_LOGGER = "milvus_lite.server_manager"
_LOCKED = "DataDirLockedError"
"""The name of milvus-lite's error where another process has the file; older versions do not have the class."""

ELSEWHERE = "put the vectors into a Milvus server (milvus://host:19530/NAME) or into FAISS: zoo gallery backend"
TOKEN = "ZOO_MILVUS_TOKEN"
"""The environment variable with what a server wants to see: user:password, or a key."""

PIECE = 1000
_PREFIX = "zoo."
T = TypeVar("T")
MOST = 16_384
"""Milvus gives no more results than that."""

CHOSEN = 10_000
"""Up to so many ids a filter is sent to Milvus; more are searched here, exactly."""

_QUERIES = 256


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


@dataclass(frozen=True)
class Held:
    """What the collection is a copy of: the gallery's own name, its model's fingerprint, its last change."""

    gallery: str
    fingerprint: str
    change: int


class Collection:
    """Vectors by id. Whatever Milvus refuses, or that it cannot be reached, is a `BackendError`; an embedded one that
    another process has open is a `UsageError`.
    """

    def __init__(self, address: Address) -> None:
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise missing("pymilvus", "milvus") from None
        self.address, self.name = address, address.collection
        given = {"token": token} if (token := os.environ.get(TOKEN)) and not address.embedded else {}
        with opening(address) if address.embedded else nullcontext():
            self._client = self._do(MilvusClient, address.uri, **given)

    def close(self) -> None:
        self._client.close()

    def held(self) -> Held | None:
        """None where there is no collection of that name. Raises `GalleryError` for one that is no gallery's."""
        if not self._do(self._client.has_collection, self.name):
            return None
        properties = self._do(self._client.describe_collection, self.name).get("properties") or {}
        try:
            gallery, fingerprint, change = (str(properties[_PREFIX + key]) for key in ("gallery", "model", "change"))
            held = Held(gallery, fingerprint, int(change))
        except (KeyError, ValueError):
            raise GalleryError(f"the collection of {self.address.text} is no gallery's; name another one.") from None
        self._do(self._client.load_collection, self.name)  # an embedded one is released when its process ends
        return held

    def create(self, dim: int, held: Held) -> None:
        """An empty collection of that name, in place of what there was."""
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        index = self._client.prepare_index_params()
        kind = "FLAT" if self.address.embedded else "AUTOINDEX"
        index.add_index(field_name="vector", index_type=kind, metric_type="IP")
        self.drop()
        self._do(
            self._client.create_collection,
            self.name,
            schema=schema,
            index_params=index,
            consistency_level="Strong",
            properties=_as_properties(held),
        )

    def drop(self) -> None:
        self._do(self._client.drop_collection, self.name)

    def write(self, blocks: Iterable[Block], removed: np.ndarray, held: Held) -> None:
        """Take vectors in and ids out, then say what is held. To do it twice is to do it once."""
        for ids, vectors in blocks:
            for start in range(0, len(ids), PIECE):
                piece = slice(start, start + PIECE)
                pairs = zip(ids[piece].tolist(), vectors[piece], strict=True)
                self._do(self._client.upsert, self.name, [{"id": one, "vector": vector} for one, vector in pairs])
        for start in range(0, len(removed), PIECE):
            self._do(self._client.delete, self.name, ids=removed[start : start + PIECE].tolist())
        self._do(self._client.alter_collection_properties, self.name, _as_properties(held))

    def count(self) -> int:
        rows = self._do(
            self._client.query, self.name, filter="id >= 0", output_fields=["count(*)"], consistency_level="Strong"
        )
        return int(rows[0]["count(*)"])

    def search(self, vectors: np.ndarray, k: int, among: np.ndarray | None) -> list[list[tuple[float, int]]]:
        """Similarity and id of up to `k` nearest to each of float32 [q, dim], of the ids `among`, where given."""
        chosen = "" if among is None else f"id in {among.tolist()}"
        found = self._do(
            self._client.search,
            self.name,
            data=list(vectors),
            limit=k,
            filter=chosen,
            output_fields=["id"],
            search_params={"metric_type": "IP"},
            anns_field="vector",
            consistency_level="Strong",
        )
        return [[(float(hit["distance"]), int(hit["id"])) for hit in row] for row in found]

    def vectors(self, ids: Sequence[int], dim: int) -> Block:
        """Those of the ids that are there, ascending, and their vectors."""
        found: dict[int, Any] = {}
        for start in range(0, len(ids), PIECE):
            piece = list(ids[start : start + PIECE])
            rows = self._do(self._client.get, self.name, ids=piece, output_fields=["id", "vector"])
            found |= {int(row["id"]): row["vector"] for row in rows}
        order = sorted(found)
        return np.array(order, np.int64), np.array([found[one] for one in order], np.float32).reshape(-1, dim)

    def _do(self, call: Callable[..., T], *args: Any, **values: Any) -> T:
        try:
            return call(*args, **values)
        except Exception as error:  # pymilvus's own, grpc's and, of an embedded one, the operating system's
            reason = str(getattr(error, "message", "") or error) or type(error).__name__
            raise BackendError(f"Milvus at {self.address.text} failed: {reason[:300]}") from None


class MilvusIndex:
    """What `LiveIndex` is to a gallery, over a collection. `name`: the gallery's own, which the collection bears."""

    def __init__(self, folder: Path, store: Store, address: Address, name: str) -> None:
        """Raises `GalleryError` where the collection is another gallery's."""
        self.folder, self.address, self.name = folder, address, name
        self._store, self._lock = store, threading.Lock()
        self._change, self._count = -1, 0
        self._local: tuple[int, Index] | None = None
        self._collection = Collection(address)
        try:
            self.current()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._collection.close()

    def current(self) -> MilvusIndex:
        """Itself, the collection brought up to the store's last change: cheap where nothing changed."""
        if self._store.position()[0] != self._change:
            with self._lock, locked(self.folder):
                self._catch_up()
        return self

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING) -> Neighbours:
        """As `LiveIndex.search`. Exact searches, and those of more ids than Milvus is sent, are made here."""
        self.current()
        among = self._store.matching_ids(selection) if selection else None
        vectors = np.ascontiguousarray(vectors, np.float32)
        return self._nearest(vectors, min(k, self._count if among is None else len(among)), exact, among)

    def _nearest(self, vectors: np.ndarray, k: int, exact: bool, among: np.ndarray | None = None) -> Neighbours:
        """Of all that the collection holds; where it gives fewer, places that nothing took."""
        if k < 1:
            return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        if k > MOST or (exact and not self.address.embedded) or (among is not None and len(among) > CHOSEN):
            return self._exactly(vectors, k, among)
        similarities = np.full((len(vectors), k), -np.inf, np.float32)
        ids = np.full((len(vectors), k), NO_ROW, np.int64)
        for start in range(0, len(vectors), _QUERIES):
            rows = self._collection.search(vectors[start : start + _QUERIES], k, among)
            for number, row in enumerate(rows, start):
                for place, (similarity, one) in enumerate(row):
                    similarities[number, place], ids[number, place] = similarity, one
        return top_k(similarities, ids, k)

    @property
    def change(self) -> int:
        """The store's change up to which the collection was brought."""
        return self._change

    def ids(self) -> np.ndarray:
        """As `Index.ids`: those of the store that the collection should hold."""
        return self._store.ids()

    def vectors_of(self, ids: np.ndarray) -> Block:
        """As `Index.vectors_of`."""
        return self._collection.vectors(ids.tolist(), self._store.dim)

    def stats(self) -> IndexStats:
        self.current()
        return IndexStats("milvus", 0, 1, None, None, None, "", self._count, 0, 0)

    def is_due(self) -> bool:
        """Milvus compacts by itself."""
        return False

    def compact(self) -> GenerationFacts | None:
        """Compare the collection with the store, and fill it anew where they differ.

        Searches of other processes may find too little while it is filled.
        """
        with self._lock, locked(self.folder):
            self._catch_up()
            with self._store.stream_changes(0) as kept:
                equal = all(equal_blocks(self.vectors_of(block[0]), block) for block in kept.blocks)
            if not equal:
                self._fill()
        return None

    def finish(self) -> None:
        """Nothing is left to do when a gallery that was written to is closed."""

    def compact_in_background(self) -> None:
        """Milvus does."""

    def tune(
        self, recall: float, k: int = 10, kinds: Sequence[str] = ()
    ) -> tuple[GenerationFacts | None, list[tuple[str, IndexMeasurement | None]]]:
        raise UsageError("a gallery whose vectors lie in Milvus is searched by the index that Milvus has chosen.")

    def _catch_up(self) -> None:
        held = self._collection.held()
        if held is not None and held.gallery != self.name:
            raise GalleryError(f"the collection of {self.address.text} is another gallery's; name another one.")
        if held is None or held.fingerprint != self._store.fingerprint:
            self._fill()
            return
        with self._store.stream_changes(held.change) as changes:
            if held.change < changes.number:
                self._collection.write(changes.blocks, changes.removed, self._held(changes.number))
        if held.change > changes.number:
            self._fill()
            return
        self._change, self._count = changes.number, changes.count
        if self._collection.count() != changes.count:
            self._fill()

    def _fill(self) -> None:
        """Another collection in place of the one there is, which was another model's or does not add up."""
        # Until all is written it says that it holds nothing.
        self._collection.create(self._store.dim, self._held(0))
        with self._store.stream_changes(0) as whole:
            self._collection.write(whole.blocks, whole.removed, self._held(whole.number))
        self._change, self._count = whole.number, whole.count
        if self._collection.count() != whole.count:
            raise GalleryError(f"Milvus at {self.address.text} does not hold what it was given; see its log.")

    def _held(self, change: int) -> Held:
        return Held(self.name, self._store.fingerprint, change)

    def _exactly(self, vectors: np.ndarray, k: int, among: np.ndarray | None) -> Neighbours:
        local = self._local
        if local is None or local[0] != self._change:
            index = Index(self._store.dim)
            with self._store.stream_changes(0) as whole:
                index.apply(whole)
            local = self._local = (index.change, index)
        return local[1].search(vectors, k, True, among)


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


def _refused(address: Address, reason: BaseException, said: GalleryError) -> UsageError | GalleryError:
    if type(reason).__name__ != _LOCKED:
        return GalleryError(f"{said}: {reason}")
    return UsageError(
        f"{address.text} is open in another process, and an embedded Milvus takes one at a time. End that one (a "
        f"service, or another zoo command), or {ELSEWHERE}."
    )


def _as_properties(held: Held) -> dict[str, str]:
    values = {"gallery": held.gallery, "model": held.fingerprint, "change": str(held.change)}
    return {_PREFIX + key: value for key, value in values.items()}
