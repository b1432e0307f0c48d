"""Recall and speed of index kinds on a gallery's own vectors, and the choice of the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from serving.gallery.index import FrozenIndex, Index, IndexKind, IndexSetting, Neighbours, build_index, find_kind, top_k
from serving.gallery.types import Block
from zoo.evaluation import nearest_neighbours
from zoo.evaluation.inputs import class_codes

QUERIES = 500
TIMED = 60
BLOCK_BYTES = 64 * 2**20
"""How much of a gallery's vectors is looked at at a time."""

_ROUNDING = 1e-5
"""Two ways of summing a product of unit vectors in single precision differ by less."""


class SearchableIndex(Protocol):
    """Embeddings of a gallery up to one change of it, as measurements read and search them. `Index` is one."""

    @property
    def change(self) -> int: ...

    def search(self, vectors: np.ndarray, k: int, exact: bool = False) -> Neighbours: ...

    def ids(self) -> np.ndarray: ...

    def vectors_of(self, ids: np.ndarray) -> Block: ...


@dataclass(frozen=True)
class QuerySample:
    """Vectors of a gallery that search all others.

    ids: int64 [q]; vectors: float32 [q, dim]; kth: float32 [q], the similarity of each one's k-th nearest other.
    """

    ids: np.ndarray
    vectors: np.ndarray
    kth: np.ndarray
    k: int


@dataclass(frozen=True)
class IndexMeasurement:
    """What a setting does: recall of the k nearest, 0 to 1; the median time of one search; the seconds to build it."""

    setting: IndexSetting
    recall: float
    milliseconds: float
    seconds: float


def sample_vectors(ids: np.ndarray, vectors: np.ndarray, k: int, queries: int = QUERIES) -> QuerySample | None:
    """Some of the vectors, float32 [n, dim], and how near their `k` nearest others are; None where there are none."""
    # Of mapped rows a copy, block by block: NumPy would copy them all, time and again (serving.gallery.index).
    return _sample(ids, lambda rows: (ids[rows], np.require(vectors[rows], requirements="A")), k, queries)


def sample_index(index: SearchableIndex, k: int, queries: int = QUERIES) -> QuerySample | None:
    """As `sample_of`, of what an index holds."""
    ids = index.ids()
    return _sample(ids, lambda rows: index.vectors_of(ids[rows]), k, queries)


def nearest_of_sample(n: int, block: Callable[[Any], Block], k: int, queries: int) -> tuple[Block, Neighbours]:
    """Some of n vectors, drawn, and the k + 1 of all that are nearest to each, itself among them.

    block: gives the ids and vectors of some rows, an array or a slice; of all of them only a part is asked for at once.
    """
    own, vectors = block(np.sort(np.random.default_rng(0).choice(n, min(queries, n), replace=False)))
    blocks = (block(rows) for rows in _pieces(n, vectors.shape[1]))
    return (own, vectors), nearest_in_blocks(blocks, vectors, k + 1)


def nearest_in_blocks(blocks: Iterable[Block], queries: np.ndarray, k: int) -> Neighbours:
    """The k nearest to each of float32 [q, dim], as `nearest_neighbours` finds them, of vectors that come in blocks."""
    similarities, ids = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for some, vectors in blocks:
        if len(some) and len(queries):
            near, rows = nearest_neighbours(queries, vectors, min(k, len(some)))
            both = np.concatenate([similarities, near], axis=1), np.concatenate([ids, some[rows]], axis=1)
            similarities, ids = top_k(*both, k)
    return similarities, ids


def label_codes(labels: Mapping[int, str | None], ids: np.ndarray) -> np.ndarray:
    """The class of each of the ids as a number, int64 [n]; -1 for items without a label."""
    names = [labels.get(item_id) for item_id in ids.tolist()]
    known = [name for name in names if name is not None]
    codes = np.full(len(ids), -1)
    if known:
        codes[[name is not None for name in names]] = class_codes(known, len(known))[0]
    return codes


def drop_self(values: np.ndarray, found: np.ndarray, own: np.ndarray) -> np.ndarray:
    """`values` [q, k + 1] at all places of `found` but the query's `own` [q]: [q, k]; of nothing found it is [q, 0].

    Where a query is not among its own neighbours the last one goes: others are equal to it, or the index missed it.
    """
    leave = found == own[:, None]
    leave[:, -1:] |= ~leave.any(axis=1, keepdims=True)
    return values[~leave].reshape(len(values), max(0, values.shape[1] - 1))


def measure_recall(index: SearchableIndex, sample: QuerySample) -> float:
    """The part of the k nearest others that the index finds; of equally near ones any counts."""
    similarities, found = index.search(sample.vectors, sample.k + 1)
    near = (similarities >= sample.kth[:, None] - _ROUNDING) & (found != sample.ids[:, None])
    return float(np.minimum(near.sum(axis=1), sample.k).mean() / sample.k)


def measure_milliseconds(index: Index, sample: QuerySample) -> float:
    """The median time of one search, of several in a row."""
    times = []
    for vector in sample.vectors[:TIMED]:
        start = time.perf_counter()
        index.search(vector[None], sample.k)
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 4)


def measure_kind(
    name: str, exact: FrozenIndex, vectors: np.ndarray, sample: QuerySample, floor: float
) -> tuple[FrozenIndex, IndexMeasurement] | None:
    """Build a kind over `vectors`, the rows of `exact`, and find its fastest setting of at least that recall.

    None where the gallery is too small for the kind, or no setting holds the floor.
    """
    kind, start = find_kind(name), time.perf_counter()
    if len(vectors) < kind.least:
        return None
    approximate = None if name == "flat" else build_index(kind, vectors)
    seconds = time.perf_counter() - start
    tried: list[tuple[IndexMeasurement, FrozenIndex]] = []
    for setting in _settings(name, kind):
        frozen = FrozenIndex(exact.exact, exact.ids, approximate, setting, sample.k)
        index = Index(vectors.shape[1], frozen)
        if any(one.setting.shortlist == setting.shortlist for one, _ in tried):
            continue  # a quicker effort with this shortlist holds the floor already
        if (recall := measure_recall(index, sample)) >= floor:
            tried.append(
                (IndexMeasurement(setting, recall, measure_milliseconds(index, sample), round(seconds, 3)), frozen)
            )
    if not tried:
        return None
    measured, frozen = min(tried, key=lambda pair: pair[0].milliseconds)
    return frozen, measured


def _sample(ids: np.ndarray, block: Callable[[Any], Block], k: int, queries: int) -> QuerySample | None:
    k = min(k, len(ids) - 1)
    if k < 1:
        return None
    (own, vectors), (similarities, found) = nearest_of_sample(len(ids), block, k, queries)
    near = drop_self(similarities, found, own)
    # Items may have gone since their ids were read.
    return QuerySample(own, vectors, near[:, -1], near.shape[1]) if near.size else None


def _pieces(n: int, dim: int) -> Iterator[slice]:
    """The rows of float32 [n, dim] in slices of at most `BLOCK_BYTES`."""
    size = max(1, BLOCK_BYTES // (4 * dim))
    return (slice(start, start + size) for start in range(0, n, size))


def _settings(name: str, kind: IndexKind) -> list[IndexSetting]:
    return [IndexSetting(name, effort, shortlist) for shortlist in kind.shortlists for effort in kind.efforts]
