"""Another gallery's collection of Milvus, in which one that follows it is searched: read, and never written."""

from __future__ import annotations

import numpy as np

from serving.gallery.generation import Facts
from serving.gallery.index import Found
from serving.gallery.milvus import MilvusIndex


class FollowedMilvusIndex(MilvusIndex):
    """Whom the gallery follows brings the collection up to a change before it tells of that change. Where the
    collection is behind all the same, or another one's, what is here is searched, exactly.
    """

    _serves = False

    def current(self) -> FollowedMilvusIndex:
        number = self._store.position()[0]
        if number != self._change or not self._serves:
            with self._lock:
                held, self._count = self._collection.held(), self._store.count()
                own = held is not None and (held.gallery, held.fingerprint) == (self.name, self._store.fingerprint)
                self._serves, self._change = own and held is not None and held.change >= number, number
        return self

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Found:
        if self._serves:
            return super().search(vectors, k, exact, among)
        k = min(k, self._count if among is None else len(among))
        return self._exactly(np.ascontiguousarray(vectors, np.float32), k, among)

    def compact(self) -> Facts | None:
        """Nothing: the collection is another's to keep."""
        return None
