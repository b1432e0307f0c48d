"""Graph indexes of other libraries over the same vectors: usearch (float16) and hnswlib (float32), one thread each.

Both keep the vectors among their graph, so the bytes of their files replace the exact rows of a gallery, where those
of a gallery's index are beside them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.tune import QuerySample

CONNECTIVITY, EXPANSION = 16, 128
"""Edges per node and breadth of the search while the graph is built: the defaults of usearch."""
EFFORTS = (16, 32, 64, 128, 256, 512)
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Peer:
    """An index of another library: `search` takes float32 [1, dim], k and an effort, and returns rows int64 [1, k]."""

    search: Callable[[np.ndarray, int, int], np.ndarray]
    save: Callable[[str], object]


def usearch(rows: np.ndarray) -> Peer:
    from usearch.index import Index

    index = Index(ndim=rows.shape[1], metric="ip", dtype="f16", connectivity=CONNECTIVITY, expansion_add=EXPANSION)
    index.add(np.arange(len(rows)), rows, threads=1)

    def search(query: np.ndarray, k: int, effort: int) -> np.ndarray:
        index.expansion_search = effort
        return np.asarray(index.search(query[0], k, threads=1).keys, np.int64)[None]

    return Peer(search, index.save)


def hnswlib(rows: np.ndarray) -> Peer:
    from hnswlib import Index

    index = Index("ip", rows.shape[1])
    index.init_index(len(rows), M=CONNECTIVITY, ef_construction=EXPANSION)
    index.add_items(rows, num_threads=1)

    def search(query: np.ndarray, k: int, effort: int) -> np.ndarray:
        index.set_ef(effort)
        return index.knn_query(query, k, num_threads=1)[0].astype(np.int64)

    return Peer(search, index.save_index)


PEERS: dict[str, Callable[[np.ndarray], Peer]] = {"usearch": usearch, "hnswlib": hnswlib}


def measure_peer(name: str, rows: np.ndarray, sample: QuerySample, floor: float) -> dict[str, Any]:
    """Build an index and return its figures at the smallest effort whose recall is at least `floor`."""
    start, busy = time.perf_counter(), time.process_time()
    peer = PEERS[name](rows)
    built = {"build_seconds": time.perf_counter() - start, "build_processor_seconds": time.process_time() - busy}
    with tempfile.TemporaryDirectory() as folder:
        peer.save(f"{folder}/index")
        built["bytes"] = (Path(folder) / "index").stat().st_size / len(rows)
    for effort in EFFORTS:
        found = [peer.search(query[None], sample.k + 1, effort)[0] for query in sample.vectors]
        recall = _recall(found, rows, sample)
        if recall >= floor:
            break
    times = latency(lambda query: peer.search(query, sample.k, effort), sample)
    return {"kind": name, "effort": effort, "recall": recall, **built, **times}


def latency(search: Callable[[np.ndarray], object], sample: QuerySample, queries: int = 200) -> dict[str, float]:
    """Return the median time of one search, and its mean time of the processor, which other processes lengthen less."""
    times, busy = [], time.process_time()
    for vector in sample.vectors[:queries]:
        start = time.perf_counter()
        search(vector[None])
        times.append(time.perf_counter() - start)
    processor = (time.process_time() - busy) / len(times)
    return {"milliseconds": 1000 * float(np.median(times)), "processor_milliseconds": 1000 * processor}


def _recall(found: list[np.ndarray], rows: np.ndarray, sample: QuerySample) -> float:
    near = 0
    for ids, own, query, kth in zip(found, sample.ids, sample.vectors, sample.kth, strict=True):
        near += min(sample.k, int(((rows[ids] @ query >= kth - _ROUNDING) & (ids != own)).sum()))
    return near / (len(found) * sample.k)
