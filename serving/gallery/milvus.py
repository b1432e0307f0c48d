"""A gallery's vectors in Milvus, in place of the FAISS index that each process has for itself.

The store stays the truth. A process that searches first brings the collection up to the store's last change, as it
would its own index, under a lock that the processes of a machine share; the collection says itself how far it is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from serving.gallery.collection import Collection, Held
from serving.gallery.generation import Facts
from serving.gallery.index import Found, Index, best_of
from serving.gallery.items import Block, IndexStats, equal_blocks
from serving.gallery.measuring import Measured
from serving.gallery.milvus_address import Address
from serving.gallery.segment import NOTHING
from serving.gallery.store import Store
from zoo.errors import GalleryError, UsageError
from zoo.files import locked

MOST = 16_384
"""Milvus gives no more results than that."""
CHOSEN = 10_000
"""Up to so many ids a filter is sent to Milvus; more are searched here, exactly."""
_QUERIES = 256


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

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Found:
        """As `Index.search`. Exact searches, and those of more ids than Milvus is sent, are made here."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        return self._nearest(vectors, min(k, self._count if among is None else len(among)), exact, among)

    def _nearest(self, vectors: np.ndarray, k: int, exact: bool, among: np.ndarray | None = None) -> Found:
        """Of all that the collection holds; where it gives fewer, places that nothing took."""
        if k < 1:
            return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        if k > MOST or (exact and not self.address.embedded) or (among is not None and len(among) > CHOSEN):
            return self._exactly(vectors, k, among)
        similarities = np.full((len(vectors), k), -np.inf, np.float32)
        ids = np.full((len(vectors), k), NOTHING, np.int64)
        for start in range(0, len(vectors), _QUERIES):
            rows = self._collection.search(vectors[start : start + _QUERIES], k, among)
            for number, row in enumerate(rows, start):
                for place, (similarity, one) in enumerate(row):
                    similarities[number, place], ids[number, place] = similarity, one
        return best_of(similarities, ids, k)

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

    def compact(self) -> Facts | None:
        """Compare the collection with the store, and fill it anew where they differ.

        Searches of other processes may find too little while it is filled.
        """
        with self._lock, locked(self.folder):
            self._catch_up()
            with self._store.reading_since(0) as kept:
                equal = all(equal_blocks(self.vectors_of(block[0]), block) for block in kept.blocks)
            if not equal:
                self._fill()
        return None

    def finish(self) -> None:
        """Nothing is left to do when a gallery that was written to is closed."""

    def compact_in_background(self) -> None:
        """Milvus does."""

    def tune(
        self, recall: float, k: int, kinds: Sequence[str]
    ) -> tuple[Facts | None, list[tuple[str, Measured | None]]]:
        raise UsageError("a gallery whose vectors lie in Milvus is searched by the index that Milvus has chosen.")

    def _catch_up(self) -> None:
        held = self._collection.held()
        if held is not None and held.gallery != self.name:
            raise GalleryError(f"the collection of {self.address.text} is another gallery's; name another one.")
        if held is None or held.fingerprint != self._store.fingerprint:
            self._fill()
            return
        changes = self._store.changes_since(held.change)
        if held.change > changes.number:
            self._fill()
            return
        if held.change < changes.number:
            new = [(changes.ids, changes.vectors)]
            self._collection.write(new, changes.removed, self._held(changes.number))
        self._change, self._count = changes.number, changes.count
        if self._collection.count() != changes.count:
            self._fill()

    def _fill(self) -> None:
        """Another collection in place of the one there is, which was another model's or does not add up."""
        # Until all is written it says that it holds nothing.
        self._collection.create(self._store.dim, self._held(0))
        with self._store.reading_since(0) as whole:
            self._collection.write(whole.blocks, whole.removed, self._held(whole.number))
        self._change, self._count = whole.number, whole.count
        if self._collection.count() != whole.count:
            raise GalleryError(f"Milvus at {self.address.text} does not hold what it was given; see its log.")

    def _held(self, change: int) -> Held:
        return Held(self.name, self._store.fingerprint, change)

    def _exactly(self, vectors: np.ndarray, k: int, among: np.ndarray | None) -> Found:
        local = self._local
        if local is None or local[0] != self._change:
            index = Index(self._store.dim)
            with self._store.reading_since(0) as whole:
                index.fill(whole)
            local = self._local = (index.change, index)
        return local[1].search(vectors, k, True, among)
