"""Candidates for copies: searches over embeddings and over perceptual hashes, in FAISS.

Few items are searched exactly. Many embeddings are searched in an inverted file of half-precision rows, which finds
nearly all of those that are near; many hashes in a multi-index hash (Norouzi, Punjani, Fleet 2012, Fast Search in
Hamming Space with Multi-Index Hashing), which finds all within 31 bits: of 16 parts of the hash, one then differs in at
most one bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Nearest:
    """Candidates of one item, the nearest first.

    Attributes:
        row: The item's row among the queries.
        similar: Ids of items whose embeddings are near.
        close: Ids of items whose hashes, or their mirror images, are near.
    """

    row: int
    similar: list[int]
    close: list[int]


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

    def nearest(self, queries: Pictures) -> Iterator[Nearest]:
        """Yield the candidates of each item that has any, without itself, in the order of the rows."""
        for start in range(0, len(queries.ids) if len(self.ids) else 0, QUERIES):
            rows = slice(start, start + QUERIES)
            similarities, places = self._embeddings.search(queries.vectors[rows], min(MAX_NEAR, len(self.ids)))
            close = [
                # The radius of FAISS is exclusive.
                self._hashes.range_search(np.ascontiguousarray(hashes), RULE.candidate_distance + 1)
                for hashes in (queries.hashes[rows], mirror_hash(queries.hashes[rows]))
            ]
            for row, item in enumerate(queries.ids[rows].tolist()):
                is_near = (similarities[row] >= RULE.similarity) & (places[row] >= 0)
                similar = self.ids[places[row][is_near]].tolist()
                by_hash = self._closest([_row_of(found, row) for found in close])
                candidates = Nearest(start + row, *([one for one in ids if one != item] for ids in (similar, by_hash)))
                if candidates.similar or candidates.close:
                    yield candidates

    def _closest(self, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[int]:
        """Return ids by their least distance, at most `MAX_NEAR`, of the distances and places of several searches."""
        distances, places = (np.concatenate(values) for values in zip(*found, strict=True))
        order = np.lexsort((places, distances))
        return list(dict.fromkeys(self.ids[places[order]].tolist()))[:MAX_NEAR]


def _row_of(found: tuple[np.ndarray, np.ndarray, np.ndarray], row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances and places of one row of a range search."""
    limits, distances, places = found
    part = slice(int(limits[row]), int(limits[row + 1]))
    return distances[part], places[part]


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
