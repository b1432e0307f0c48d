"""Another gallery's collection of Milvus, in which one that follows it is searched: read, and never written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from serving.gallery.generation import Facts
from serving.gallery.index import Found, best_of
from serving.gallery.milvus import MilvusIndex
from serving.gallery.milvus_address import Address
from serving.gallery.segment import NOTHING
from serving.gallery.store import Store

MORE = 4
"""By how much more are asked for where some of what was found is not here yet."""


class FollowedMilvusIndex(MilvusIndex):
    """Whom the gallery follows brings the collection up to a change before it tells of that change. Where the
    collection is behind all the same, or another one's, what is here is searched, exactly.
    """

    _position: tuple[int, str] | None = None

    def __init__(
        self, folder: Path, store: Store, address: Address, name: str, still: Callable[[], bool] = lambda: True
    ) -> None:
        """still: whether the vectors of whom it follows are still said to lie there; a backup that they went on with
        has none in Milvus, and a change number that may be less.
        """
        self._still = still
        super().__init__(folder, store, address, name)

    def current(self) -> FollowedMilvusIndex:
        position = self._store.position()
        if position != self._position:
            with self._lock:
                self._position, self._change, self._count = position, position[0], self._store.count()
                self._local = None  # what was copied anew may have come to the same number
        return self

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Found:
        """As `Index.search`: only of items that are here, though the collection may be ahead and hold more."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        k = min(k, self._count if among is None else len(among))
        if not self._serves():
            return self._exactly(vectors, k, among)
        return super().search(vectors, k, exact, among) if among is not None else self._known(vectors, k, exact)

    def _known(self, vectors: np.ndarray, k: int, exact: bool) -> Found:
        """More are asked for until k of them are here, or there are no more."""
        asked, enough = k, False
        while not enough:
            similarities, ids = self._nearest(vectors, asked, exact)
            known = np.isin(ids, self._store.present(np.unique(ids).tolist()))
            fewer = (ids == NOTHING).any(axis=1) | (ids.shape[1] < asked)  # what is searched here leaves no places
            enough = bool(((known.sum(axis=1) >= k) | fewer).all())
            asked *= MORE
        return best_of(np.where(known, similarities, -np.inf), np.where(known, ids, NOTHING), k)

    def compact(self) -> Facts | None:
        """Nothing: the collection is another's to keep."""
        return None

    def _serves(self) -> bool:
        """Asked each time: the collection may be given another model, or be filled anew, while nothing changes here."""
        held = self._collection.held() if self._still() else None
        own = held is not None and (held.gallery, held.fingerprint) == (self.name, self._store.fingerprint)
        return own and held is not None and held.change >= self._change
