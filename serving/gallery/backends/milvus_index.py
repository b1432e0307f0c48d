"""Search over a gallery in Milvus, which keeps its index itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from serving.gallery.backends.milvus import MilvusStore
from serving.gallery.backends.milvus_client import Row
from serving.gallery.backends.milvus_rows import expression, matches
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import NO_ROW, Neighbours, top_k
from serving.gallery.tune import nearest_in_blocks
from serving.gallery.types import Block, IndexStats
from zoo.errors import UsageError

MAX_RESULTS = 16_384
"""Largest number of results of one search in Milvus; more are searched here."""

QUERIES, RESULTS = 256, 100_000
"""Largest number of queries, and of their results together, in one search."""


class MilvusIndex:
    """Search over the embeddings of a gallery in Milvus, which keeps its index itself.

    Attributes:
        repeats: Rows to ask for beside those that are wanted, because each item of an image has a row of its own.
    """

    repeats = 10

    def __init__(self, store: MilvusStore) -> None:
        self._store = store

    @property
    def change(self) -> int:
        return self._store.change()

    def current(self) -> MilvusIndex:
        return self

    def ids(self) -> np.ndarray:
        return np.array([row["id"] for piece in self._store.scan(("id",)) for row in piece], np.int64)

    def vectors_of(self, ids: np.ndarray) -> Block:
        present, vectors = self._store.embeddings(ids.tolist())
        return np.array(present, np.int64), vectors

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING) -> Neighbours:
        """Return similarities, float32 [q, k], and ids, int64 [q, k], of the nearest items.

        Milvus searches; all vectors are compared here for an exact search of an approximate index, and for more
        results than Milvus returns.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        collection = self._store.collection
        if k > MAX_RESULTS or (exact and self._store.connection.index_type(collection) != "FLAT"):
            return self._compare(vectors, k, selection)
        size, found = max(1, min(QUERIES, RESULTS // k)), list[list[Row]]()
        for start in range(0, len(vectors), size):
            rows = self._search(vectors[start : start + size], k, selection)
            if rows is None:
                return self._compare(vectors, k, selection)
            found += rows
        return _as_arrays(found, k)

    def _search(self, vectors: np.ndarray, k: int, selection: Filter) -> list[list[Row]] | None:
        """Search in Milvus, again for more while a filter by metadata leaves too few; None if Milvus has no more."""
        limit, condition = k, expression(selection)
        fields = ("label", "metadata") if selection.where else ()
        while True:
            found = self._store.connection.search(self._store.collection, vectors, limit, condition, fields)
            kept = [[row for row in rows if not selection.where or matches(selection, row)] for rows in found]
            if all(len(rows) >= k or len(every) < limit for rows, every in zip(kept, found, strict=True)):
                return kept
            if limit == MAX_RESULTS:
                return None
            limit = min(MAX_RESULTS, 4 * limit)

    def _compare(self, vectors: np.ndarray, k: int, selection: Filter) -> Neighbours:
        """Compare the vectors with those of all items, which are read in pieces."""
        dim = self._store.card.dim
        pieces = self._store.scan(("id", "vector"), selection, size=max(1, 2**22 // dim))
        return nearest_in_blocks((_block(piece, dim) for piece in pieces), vectors, k)

    def stats(self) -> IndexStats:
        return IndexStats("milvus", 0, 1, None, None, None, self._store.collection, self._store.count(), 0, 0)

    def is_due(self) -> bool:
        return False

    def finish(self) -> None:
        """Do nothing, as `compact_in_background`."""

    def compact_in_background(self) -> None:
        """Do nothing, because Milvus compacts its collections itself."""

    def compact(self) -> NoReturn:
        raise UsageError(f"Milvus compacts {self._store.address} itself.", code="not-available")

    def tune(self, recall: float, k: int = 10, kinds: Sequence[str] = ()) -> NoReturn:
        raise UsageError(
            f"Milvus searches {self._store.address} by the index that its collection was made with: set "
            "ZOO_MILVUS_INDEX to FLAT (exact) or AUTOINDEX before zoo index makes a gallery.",
            code="not-available",
        )


def _as_arrays(found: Sequence[Sequence[Row]], k: int) -> Neighbours:
    """Return the k nearest rows of each query as arrays; equal ones in the order of their ids."""
    width = max(map(len, found), default=0)
    similarities = np.full((len(found), width), -np.inf, np.float32)
    ids = np.full((len(found), width), NO_ROW, np.int64)
    for number, rows in enumerate(found):
        similarities[number, : len(rows)] = [row["similarity"] for row in rows]
        ids[number, : len(rows)] = [row["id"] for row in rows]
    return top_k(similarities, ids, k)


def _block(rows: Sequence[Row], dim: int) -> Block:
    ids = np.array([row["id"] for row in rows], np.int64)
    return ids, np.array([row["vector"] for row in rows], np.float32).reshape(-1, dim)
