"""Recall and speed of an index, measured on the vectors of the gallery itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from serving.gallery.index import FrozenIndex, Index, IndexSetting, Neighbours, build_index, find_kind, top_k
from serving.gallery.types import Block
from zoo.evaluation import nearest_neighbours
from zoo.evaluation.inputs import class_codes

QUERIES, SEED = 500, 0
"""Number of vectors that search all others, and the seed that draws them."""
TIMED = 60
BLOCK_BYTES = 64 * 2**20
"""Vectors of a gallery that are read at a time."""

_ROUNDING = 1e-5
"""Largest difference between two float32 products of unit vectors, added in another order."""


class SearchableIndex(Protocol):
    """Embeddings of a gallery as of one change number. `Index` is one."""

    @property
    def change(self) -> int: ...

    def search(self, vectors: np.ndarray, k: int, exact: bool = False) -> Neighbours: ...

    def ids(self) -> np.ndarray: ...

    def vectors_of(self, ids: np.ndarray) -> Block: ...


@dataclass(frozen=True)
class QuerySample:
    """Vectors of a gallery that search all others.

    Attributes:
        ids: int64 [q].
        vectors: float32 [q, dim].
        kth: Similarity of the k-th nearest other vector, float32 [q].
    """

    ids: np.ndarray
    vectors: np.ndarray
    kth: np.ndarray
    k: int


@dataclass(frozen=True)
class IndexMeasurement:
    """Recall of the k nearest (0 to 1), median milliseconds of one search, and seconds to build the index."""

    setting: IndexSetting
    recall: float
    milliseconds: float
    seconds: float


def measure_kind(
    name: str, exact: FrozenIndex, vectors: np.ndarray, sample: QuerySample, floor: float
) -> tuple[FrozenIndex, IndexMeasurement] | None:
    """Build a kind of index and return it with its fastest setting whose recall is at least `floor`.

    Args:
        name: The kind.
        exact: Flat index of the vectors.
        vectors: Its rows, float32 [n, dim].
        sample: The queries.
        floor: The recall.

    Returns:
        None if there are too few vectors for the kind, or no setting has the recall.
    """
    kind, start = find_kind(name), time.perf_counter()
    if len(vectors) < kind.least:
        return None
    approximate = None if name == "flat" else build_index(kind, vectors)
    seconds = round(time.perf_counter() - start, 3)
    return fastest_setting(name, replace(exact, approximate=approximate), sample, floor, seconds)


def fastest_setting(
    name: str, built: FrozenIndex, sample: QuerySample, floor: float, seconds: float
) -> tuple[FrozenIndex, IndexMeasurement] | None:
    """Return an index of a kind with its fastest setting that has the recall; None if no setting has it."""
    kind = find_kind(name)
    measured: list[tuple[IndexMeasurement, FrozenIndex]] = []
    for shortlist in kind.shortlists:
        for effort in kind.efforts:
            setting = IndexSetting(name, effort, shortlist)
            frozen = replace(built, setting=setting, k=sample.k)
            index = Index(built.exact.d, frozen)
            if (recall := measure_recall(index, sample)) >= floor:
                milliseconds = _measure_milliseconds(index, sample)
                measured.append((IndexMeasurement(setting, recall, milliseconds, seconds), frozen))
                break  # larger efforts are slower
    if not measured:
        return None
    measurement, frozen = min(measured, key=lambda pair: pair[0].milliseconds)
    return frozen, measurement


def measure_recall(index: SearchableIndex, sample: QuerySample) -> float:
    """Return the share of the k nearest other vectors that the index finds; equally near ones are as good."""
    similarities, ids = index.search(sample.vectors, sample.k + 1)
    near = (similarities >= sample.kth[:, None] - _ROUNDING) & (ids != sample.ids[:, None])
    return float(np.minimum(near.sum(axis=1), sample.k).mean() / sample.k)


def _measure_milliseconds(index: Index, sample: QuerySample) -> float:
    """Return the median time of one search."""
    times = []
    for vector in sample.vectors[:TIMED]:
        start = time.perf_counter()
        index.search(vector[None], sample.k)
        times.append(time.perf_counter() - start)
    return round(1000 * float(np.median(times)), 4)


def sample_vectors(ids: np.ndarray, vectors: np.ndarray, k: int, queries: int = QUERIES) -> QuerySample | None:
    """Draw queries from float32 [n, dim] and find their `k` nearest others; None for fewer than two vectors."""
    # Mapped rows are copied block by block, because NumPy would copy all of them (serving.gallery.index).
    return _sample(ids, lambda rows: (ids[rows], np.require(vectors[rows], requirements="A")), k, queries)


def sample_index(index: SearchableIndex, k: int, queries: int = QUERIES) -> QuerySample | None:
    """Draw queries from the vectors of an index; as `sample_vectors`."""
    ids = index.ids()
    return _sample(ids, lambda rows: index.vectors_of(ids[rows]), k, queries)


def _sample(ids: np.ndarray, block: Callable[[Any], Block], k: int, queries: int) -> QuerySample | None:
    k = min(k, len(ids) - 1)
    if k < 1:
        return None
    (own, vectors), (similarities, neighbours) = _nearest_of_sample(len(ids), block, k, queries)
    near = drop_self(similarities, neighbours, own)
    # Items may have been removed since their ids were read.
    return QuerySample(own, vectors, near[:, -1], near.shape[1]) if near.size else None


def _nearest_of_sample(n: int, block: Callable[[Any], Block], k: int, queries: int) -> tuple[Block, Neighbours]:
    """Draw queries from n vectors, and find the k + 1 nearest of all vectors to each, itself among them.

    Args:
        n: Number of vectors.
        block: Returns the ids and vectors of some rows, given as an array or a slice.
        k: Number of other vectors.
        queries: Number of queries.
    """
    own, vectors = block(np.sort(np.random.default_rng(SEED).choice(n, min(queries, n), replace=False)))
    size = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    blocks = (block(slice(start, start + size)) for start in range(0, n, size))
    return (own, vectors), nearest_in_blocks(blocks, vectors, k + 1)


def nearest_in_blocks(blocks: Iterable[Block], queries: np.ndarray, k: int) -> Neighbours:
    """Return the k nearest to each of float32 [q, dim], of vectors that come in blocks."""
    similarities, ids = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for block_ids, vectors in blocks:
        if len(block_ids) and len(queries):
            near, rows = nearest_neighbours(queries, vectors, min(k, len(block_ids)))
            both = np.concatenate([similarities, near], axis=1), np.concatenate([ids, block_ids[rows]], axis=1)
            similarities, ids = top_k(*both, k)
    return similarities, ids


def drop_self(values: np.ndarray, neighbours: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return `values` [q, k + 1] without the place of the query itself: [q, k].

    Args:
        values: Any values of the neighbours.
        neighbours: Their ids, int64 [q, k + 1].
        own: The ids of the queries, int64 [q]. If one is not among its neighbours, the last neighbour is dropped.
    """
    drop = neighbours == own[:, None]
    drop[:, -1:] |= ~drop.any(axis=1, keepdims=True)
    return values[~drop].reshape(len(values), max(0, values.shape[1] - 1))


def label_codes(labels: Mapping[int, str | None], ids: np.ndarray) -> np.ndarray:
    """Return the class of each id as a number, int64 [n]; -1 for items without a label."""
    names = [labels.get(item_id) for item_id in ids.tolist()]
    known = [name for name in names if name is not None]
    codes = np.full(len(ids), -1)
    if known:
        codes[[name is not None for name in names]] = class_codes(known, len(known))[0]
    return codes
