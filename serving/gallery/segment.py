"""Vectors in one FAISS index by row, their ids, and which of them are still there."""

from __future__ import annotations

from collections.abc import Iterable

import faiss
import numpy as np

from serving.gallery.items import Block
from serving.gallery.kinds import Kind

NOTHING = -1
"""The id of a place that no vector took."""


class Segment:
    """Rows are never taken out of an index, as not every kind can; those that are gone are passed over."""

    def __init__(self, exact: faiss.Index, ids: np.ndarray) -> None:
        """`exact`: a flat index of the vectors; `ids`: int64 [n], ascending."""
        self.exact, self.ids = exact, ids
        self.alive = np.ones(len(ids), np.bool_)
        self.gone = 0
        self._bits: np.ndarray | None = None

    def __len__(self) -> int:
        """How many vectors are there, those that are gone left out."""
        return len(self.ids) - self.gone

    def add(self, blocks: Iterable[Block], expected: int = 0) -> None:
        """Add vectors whose ids are larger than those that are there; `expected`: how many, for which room is made."""
        # FAISS doubles its memory as it grows, and copies what there was.
        if expected:
            self.exact.codes.resize((len(self.ids) + expected) * self.exact.code_size)
            self.exact.codes.resize(len(self.ids) * self.exact.code_size)
        ids = [self.ids]
        for some, vectors in blocks:
            self.exact.add(np.ascontiguousarray(vectors, np.float32))
            ids.append(some)
        self.ids = np.concatenate(ids)
        self.alive = np.concatenate([self.alive, np.ones(len(self.ids) - len(self.alive), np.bool_)])
        self._bits = None

    def remove(self, ids: np.ndarray) -> None:
        """Pass over these ids from now on; others than those that are there are no error."""
        rows = np.searchsorted(self.ids, ids)
        rows = rows[rows < len(self.ids)]
        rows = rows[np.isin(self.ids[rows], ids)]
        self.alive[rows] = False
        self.gone = len(self.alive) - int(np.count_nonzero(self.alive))
        self._bits = None

    def search(
        self,
        index: faiss.Index,
        kind: Kind,
        effort: int,
        vectors: np.ndarray,
        k: int,
        among: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Similarities float32 [q, k] and rows int64 [q, k] as `index`, one of these vectors, finds them.

        among: the ids that may be found, int64, ascending; None for all. Places that nothing took have the row -1 and
        the similarity -inf.
        """
        if k == 0 or len(self.ids) == 0:
            return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        bits = self._bits_of_those_alive() if among is None else _packed(self.alive & np.isin(self.ids, among))
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        similarities, rows = search(index, vectors, k, kind.parameters(effort, selector))
        return np.where(rows == NOTHING, np.float32(-np.inf), similarities), rows

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """The ids, int64, of rows; -1 stays -1."""
        if not len(self.ids):
            return rows
        return np.where(rows == NOTHING, NOTHING, self.ids[rows])

    def vectors(self) -> np.ndarray:
        """All rows, float32 [n, dim], those that are gone as well: a view that lives as long as the index."""
        return rows_of(self.exact)

    def vectors_of(self, ids: np.ndarray) -> Block:
        """Those of the ids, ascending, that are there, and their vectors, copied."""
        rows = np.searchsorted(self.ids, ids)
        there = rows < len(self.ids)
        there[there] = (self.ids[rows[there]] == ids[there]) & self.alive[rows[there]]
        return ids[there], self.vectors()[rows[there]]

    def _bits_of_those_alive(self) -> np.ndarray | None:
        if self.gone and self._bits is None:
            self._bits = _packed(self.alive)
        return self._bits if self.gone else None


def rows_of(exact: faiss.Index) -> np.ndarray:
    """A flat index's vectors, float32 [n, dim]: a view that lives as long as it. In a mapped one numbers do not lie at
    addresses that NumPy calls aligned: some of its functions copy all of such an array first.
    """
    n, dim = exact.ntotal, exact.d
    if n == 0:
        return np.empty((0, dim), np.float32)
    return faiss.rev_swig_ptr(exact.get_xb(), n * dim).reshape(n, dim)


def search(
    index: faiss.Index, vectors: np.ndarray, k: int, parameters: faiss.SearchParameters
) -> tuple[np.ndarray, np.ndarray]:
    """`index.search` with parameters, of contiguous float32 [q, d], by FAISS's own function.

    Whoever imports faiss.contrib.torch_utils (pytorch-metric-learning does) puts another one in its place, everywhere
    in the process, which takes no parameters.
    """
    similarities, rows = np.empty((len(vectors), k), np.float32), np.empty((len(vectors), k), np.int64)
    given, out, found = (faiss.swig_ptr(array) for array in (vectors, similarities, rows))
    index.search_c(len(vectors), given, k, out, found, parameters)
    return similarities, rows


def _packed(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags, bitorder="little")
