"""What a process searches: the generation that lies on disk, the vectors that came since, and what is gone.

New vectors wait in a flat side index and those removed are passed over by a bitmap, until a compaction writes the
next generation (serving.gallery.compaction). The main part is memory-mapped: all processes of a machine share it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import faiss
import numpy as np

from serving.gallery.gpu import MOST, copied
from serving.gallery.items import Block, Changes, Reading
from serving.gallery.kinds import FLAT, KINDS, Setting
from serving.gallery.locks import SharedLock
from serving.gallery.segment import NOTHING, Segment

logger = logging.getLogger(__name__)

BEYOND = 4
"""Up to how many times the k that an approximate index was measured at it is asked; beyond, the search is exact."""

_PIECE = 32

Found = tuple[np.ndarray, np.ndarray]
"""Similarities float32 [q, k] and ids int64 [q, k], best first; places that nothing took are -inf and -1."""


@dataclass(frozen=True)
class Frozen:
    """The part of an index that never changes.

    exact: a flat index of all vectors; ids: int64 [n], ascending; approximate: an index of the same rows, None where
    the exact one is searched; k: the one that `setting` was measured at.
    """

    exact: faiss.Index
    ids: np.ndarray
    approximate: faiss.Index | None = None
    setting: Setting = FLAT
    k: int = 10


class Index:
    """Vectors by id. Searches run side by side; a change waits for them and they for it."""

    def __init__(
        self, dim: int, frozen: Frozen | None = None, change: int = 0, generation: str = "", device: str = "cpu"
    ) -> None:
        """`change`: the store's change that `frozen` holds; `generation`: its name, "" for none.

        device: where that part is searched: cpu, or a GPU as `serving.gallery.gpu` takes it.
        """
        self.dim, self.change, self.generation = dim, change, generation
        self._frozen = frozen or Frozen(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        self._main = Segment(self._frozen.exact, self._frozen.ids)
        self._side = Segment(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        self._graphics = copied(self._main, device)
        self._lock = SharedLock()

    def __len__(self) -> int:
        return len(self._main) + len(self._side)

    @property
    def setting(self) -> Setting:
        return self._frozen.setting

    @property
    def device(self) -> str:
        """Where the part that lies on disk is searched: cpu, or cuda:N."""
        graphics = self._graphics
        return graphics.device if graphics else "cpu"

    @property
    def waiting(self) -> int:
        """How many vectors the next compaction would take in or out."""
        return len(self._side.ids) + self._main.gone

    def apply(self, changes: Changes) -> None:
        """Take over what happened in the store since `self.change`."""
        with self._lock.exclusive():
            if len(changes.ids):
                self._side.add([(changes.ids, changes.vectors)])
            self._pass_over(changes.removed)
            self.change = changes.number

    def fill(self, new: Reading) -> None:
        """As `apply`, with one block of the vectors beside those held; searches wait while they are read."""
        with self._lock.exclusive():
            self._side.add(new.blocks, max(0, new.count - len(self)))
            self._pass_over(new.removed)
            self.change = new.number

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Found:
        """The `k` nearest to each of `vectors`, float32 [q, dim]; k is cut to what there is.

        Similarities are exact. `exact`: so is the choice of neighbours; else it is as good as the index's setting.
        among: the ids that may be found, int64, ascending; they are always searched exactly, as an approximate index
        may find hardly any of a few. Those that are not there leave places that nothing took.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        with self._lock.shared():
            k = min(k, len(self) if among is None else len(among))
            similarities, rows = self._search_main(vectors, min(k, len(self._main)), exact, among)
            ids = self._main.ids_of(rows)
            if len(self._side):
                new, new_rows = self._search_exactly(self._side, vectors, min(k, len(self._side)), among)
                similarities = np.concatenate([similarities, new], axis=1)
                ids = np.concatenate([ids, self._side.ids_of(new_rows)], axis=1)
        return best_of(similarities, ids, k)

    def ids(self) -> np.ndarray:
        """The ids of all that is there, int64 [n], ascending."""
        with self._lock.shared():
            return np.concatenate([part.ids[part.alive] for part in (self._main, self._side)])

    def vectors_of(self, ids: np.ndarray) -> Block:
        """Those of the ids, int64, ascending, that are there, and their vectors, float32 [n, dim], copied."""
        with self._lock.shared():
            parts = [part.vectors_of(ids) for part in (self._main, self._side)]
        return np.concatenate([found for found, _ in parts]), np.concatenate([vectors for _, vectors in parts])

    def _pass_over(self, removed: np.ndarray) -> None:
        if len(removed):
            self._main.remove(removed)
            self._side.remove(removed)

    def _search_main(self, vectors: np.ndarray, k: int, exact: bool, among: np.ndarray | None) -> Found:
        """At least k rows for each vector, with their exact similarities, in no order."""
        rows = None if exact or among is not None else self._proposed(vectors, k)
        if rows is None:
            return self._search_exactly(self._main, vectors, k, among)
        similarities = self._scores(vectors, rows)
        # Lists that were looked into may hold fewer than k: the search promises k where there are k.
        short = (rows != NOTHING).sum(axis=1) < k
        if short.any():
            similarities[short], rows[short] = self._search_exactly(self._main, vectors[short], rows.shape[1])
        return similarities, rows

    def _proposed(self, vectors: np.ndarray, k: int) -> np.ndarray | None:
        """Rows int64 [q, p] among which the k nearest are looked for; None where all rows are to be looked at."""
        graphics = self._graphics  # which another thread may give up meanwhile
        if graphics and 0 < k <= MOST:
            try:
                return graphics.propose(vectors, k)
            except RuntimeError as error:
                logger.warning("vectors are searched on the CPU from now on, as the GPU failed: %s.", error)
                self._graphics = None
        if self._frozen.approximate is None or k > BEYOND * self._frozen.k:
            return None
        setting, kind = self.setting, KINDS[self.setting.kind]
        proposed = min(setting.shortlist * k, len(self._main))
        return self._main.search(self._frozen.approximate, kind, setting.effort, vectors, proposed)[1]

    def _scores(self, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The exact similarity of each row to its query, float32 [q, p]; -inf where nothing is."""
        known, scores = self._main.vectors(), np.empty(rows.shape, np.float32)
        for start in range(0, len(vectors), _PIECE):  # what is gathered is far larger than the result
            piece = slice(start, start + _PIECE)
            scores[piece] = np.einsum("qd,qkd->qk", vectors[piece], known[rows[piece]])
        scores[rows == NOTHING] = -np.inf
        return scores

    def _search_exactly(self, part: Segment, vectors: np.ndarray, k: int, among: np.ndarray | None = None) -> Found:
        return part.search(part.exact, KINDS["flat"], 0, vectors, k, among)


def best_of(similarities: np.ndarray, ids: np.ndarray, k: int) -> Found:
    """The k largest of each row; equal ones in the order of their ids."""
    order = np.lexsort((ids, -similarities), axis=1)[:, :k]
    return np.take_along_axis(similarities, order, axis=1), np.take_along_axis(ids, order, axis=1)
