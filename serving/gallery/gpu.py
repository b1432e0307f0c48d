"""A copy of a generation's rows on a GPU, where FAISS sees one: all of millions are looked at there in a moment.

FAISS's flat index of a GPU takes no selector of rows, finds `MOST` neighbours at most and serves one caller at a time.
It therefore proposes rows, more than are wanted where some are gone, and the gallery scores those by its own vectors,
as it does with the rows that an approximate index proposes.
"""

from __future__ import annotations

import logging
import re
import threading

import faiss
import numpy as np

from serving.gallery.segment import NOTHING, Segment, search

logger = logging.getLogger(__name__)

MOST = 2048
"""FAISS's limit of neighbours on a GPU."""

SPARE = 8
"""Rows proposed beyond those wanted: a GPU sums products in another order, by which nearly equal rows change places."""

_SCRATCH_BYTES = 64 * 2**20
"""FAISS would take 1.5 GiB of a GPU's memory for its own use, in each process and for each generation."""

_TRIED = 4

_NAMED = re.compile(r"(?:cuda|tensorrt)(?::(\d+))?")


class Graphics:
    """The rows of one segment on one GPU. Safe to use from several threads, one of which is served at a time."""

    def __init__(self, segment: Segment, number: int) -> None:
        """Raises `RuntimeError` where the GPU has no room for them, or finds others than a CPU does."""
        self.device = f"cuda:{number}"
        self._segment, self._lock = segment, threading.Lock()
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(_SCRATCH_BYTES)
        self._copy = faiss.index_cpu_to_gpu(self._resources, number, segment.exact)
        self._try()

    def propose(self, vectors: np.ndarray, k: int) -> np.ndarray:
        """Rows int64 [q, p] of the segment for float32 [q, dim]: the `k` nearest that are there, and some more.

        Places that nothing took are -1; more than p - k of them mean that more rows have gone than a GPU can pass over.
        Raises `RuntimeError` where the GPU fails.
        """
        segment = self._segment
        rows = self._nearest(vectors, min(k + SPARE + segment.gone, MOST, len(segment.ids)))
        gone = (rows == NOTHING) | ~segment.alive[rows]
        first = np.argsort(gone, axis=1, kind="stable")[:, : k + SPARE]
        return np.take_along_axis(np.where(gone, NOTHING, rows), first, axis=1)

    def _nearest(self, vectors: np.ndarray, k: int) -> np.ndarray:
        with self._lock:
            return search(self._copy, vectors, k, None)[1]

    def _try(self) -> None:
        """Raise `RuntimeError` unless some of the rows find what the CPU finds for them."""
        known = self._segment.vectors()
        some = np.array(known[np.linspace(0, len(known) - 1, _TRIED).astype(np.int64)])
        expected, rows = search(self._segment.exact, some, 1, None)[0][:, 0], self._nearest(some, 1)[:, 0]
        if (rows == NOTHING).any() or not np.allclose(np.vecdot(known[rows], some), expected, atol=1e-5):
            raise RuntimeError("it does not find what a CPU finds")


def copied(segment: Segment, device: str) -> Graphics | None:
    """The segment's rows on the GPU that `device` names (cuda, cuda:N, tensorrt).

    None for cpu, for an empty segment, where the FAISS that is installed sees no such GPU, and where the GPU does not
    do it, which the log says: the CPU finds the same.
    """
    named = _NAMED.fullmatch(device)
    if named is None or not len(segment.ids):
        return None
    number = int(named[1] or 0)
    if number >= faiss.get_num_gpus():
        return None
    try:
        return Graphics(segment, number)
    except RuntimeError as error:
        logger.warning("vectors are searched on the CPU, as the GPU does not take them: %s.", error)
        return None
