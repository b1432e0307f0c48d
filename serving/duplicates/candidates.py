"""Candidates for copies: range searches over embeddings and over perceptual hashes, in FAISS.

Few items are searched exactly. Many embeddings are searched in an inverted file of half-precision rows, which finds
nearly all of those that are near; many hashes in a multi-index hash (Norouzi, Punjani, Fleet 2012, Fast Search in
Hamming Space with Multi-Index Hashing), which finds all within 31 bits: of 16 parts of the hash, one then differs in at
most one bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from serving.duplicates.pictures import Pictures
from serving.duplicates.rule import RULE
from zoo.data.perceptual_hash import BITS, mirror_hash
from zoo.errors import missing

try:
    import faiss
except ImportError:
    raise missing("faiss", "cpu") from None

EXACT = 20_000
"""Largest number of items that are searched exactly."""

PROBES, ROWS_PER_LIST = 8, 50
"""Lists of the inverted file that a query visits, and rows to train each list with."""

PARTS, PART_BITS, FLIPPED = 16, 16, 1
"""Parts of a hash, their bits, and bits of a part in which a candidate may differ."""

QUERIES = 500
"""Queries at a time."""

MAX_NEAR = 100
"""Candidates of one item by each of the searches, the nearest first: many blank pictures are all near to each other."""


class CandidateIndex:
    """Items that others are compared with, in two indexes.

    Memory: for more than `EXACT` items 2 bytes per number of an embedding and about 500 bytes per item.
    """

    def __init__(self, dim: int, count: int, sample: np.ndarray | None) -> None:
        """Make empty indexes.

        Args:
            dim: Length of the embeddings.
            count: Number of items that will be added.
            sample: Embeddings to train on, float32 [s, dim], for more than `EXACT` items (see `lists`).
        """
        self._ids = []
        self._embeddings = _inverted_file(dim, count, sample) if sample is not None else faiss.IndexFlatIP(dim)
        if sample is None:
            self._hashes: Any = faiss.IndexBinaryFlat(BITS)
        else:
            self._hashes = faiss.IndexBinaryMultiHash(BITS, PARTS, PART_BITS)
            self._hashes.nflip = FLIPPED
        self.ids = np.empty(0, np.int64)

    _ids: list[np.ndarray]

    def add(self, pictures: Pictures) -> None:
        """Add items, in the order of their ids."""
        self._embeddings.add(pictures.vectors)
        self._hashes.add(pictures.hashes)
        self._ids.append(pictures.ids)

    def finish(self) -> None:
        """End the additions."""
        self.ids = np.concatenate(self._ids) if self._ids else self.ids
        self._ids.clear()

    def pairs(self, queries: Pictures) -> np.ndarray:
        """Return pairs (row of `queries`, id in the index), int64 [m, 2], each once, without an item and itself.

        Of two items that are both in the index, the pair is returned for the one with the larger id only.
        """
        found = np.concatenate([np.empty((0, 2), np.int64), *self._found(queries)])
        rows, ids = queries.ids[found[:, 0]], self.ids[found[:, 1]]
        places = np.minimum(np.searchsorted(self.ids, rows), max(0, len(self.ids) - 1))
        is_inside = self.ids[places] == rows if len(self.ids) else np.zeros(len(rows), bool)
        kept = np.where(is_inside, rows > ids, True)
        return np.unique(np.stack([found[kept, 0], ids[kept]], axis=1), axis=0)

    def _found(self, queries: Pictures) -> Iterator[np.ndarray]:
        for start in range(0, len(queries.ids), QUERIES):
            rows = slice(start, start + QUERIES)
            similar = self._embeddings.range_search(queries.vectors[rows], RULE.similarity)
            yield _nearest(start, similar, -1)
            for hashes in (queries.hashes[rows], mirror_hash(queries.hashes[rows])):
                # The radius of FAISS is exclusive.
                close = self._hashes.range_search(np.ascontiguousarray(hashes), RULE.candidate_distance + 1)
                yield _nearest(start, close, 1)


def lists(count: int) -> int:
    """Return the number of lists of an inverted file of `count` items; `ROWS_PER_LIST` times as many rows train it."""
    return max(1, int(2 * count**0.5))


def build_index(dim: int, count: int, pages: Iterable[Pictures], sample: np.ndarray | None) -> CandidateIndex:
    """Return an index with all items of the pages; `sample` as for `CandidateIndex`."""
    index = CandidateIndex(dim, count, sample)
    for page in pages:
        index.add(page)
    index.finish()
    return index


def _inverted_file(dim: int, count: int, sample: np.ndarray) -> Any:
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(dim), dim, lists(count), faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    index.by_residual = False  # so that similarities are those of the rows
    index.cp.min_points_per_centroid = 1
    index.train(sample)
    index.nprobe = PROBES
    return index


def _nearest(start: int, found: tuple[np.ndarray, np.ndarray, np.ndarray], order: int) -> np.ndarray:
    """Return (row, place) of the results of a range search, int64 [m, 2], at most `MAX_NEAR` per row and the nearest.

    order: 1 if small distances are near, -1 if large similarities are.
    """
    limits, distances, places = found
    bounds = limits.astype(np.int64)
    counts: np.ndarray = bounds[1:] - bounds[:-1]
    rows = np.repeat(np.arange(len(counts)), counts)
    if (counts > MAX_NEAR).any():
        by_row = np.lexsort((order * distances, rows))
        ranks = np.arange(len(rows)) - np.repeat(bounds[:-1], counts)
        chosen = by_row[ranks < MAX_NEAR]
        rows, places = rows[chosen], places[chosen]
    return np.stack([rows + start, places.astype(np.int64)], axis=1)
