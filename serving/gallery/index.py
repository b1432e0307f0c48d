"""The index of a gallery in memory: FAISS indexes of frozen rows, rows added since, and removals.

An approximate index proposes rows, and their exact similarities decide the order. New vectors wait in a flat index, and
a bitmap hides removed ones, until a compaction (serving.gallery.index_files) freezes what is left.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from serving.gallery.types import Block, StoreChanges
from zoo.errors import missing, unknown

try:
    import faiss
except ImportError:
    raise missing("faiss", "cpu") from None

logger = logging.getLogger(__name__)

NO_ROW = -1
"""Row and id of a place that no vector fills."""

Neighbours = tuple[np.ndarray, np.ndarray]
"""Similarities float32 [q, k] and ids (or rows) int64 [q, k], best first; unfilled places are -inf and -1."""

GPU_MAX_K = 2048
"""FAISS's limit of neighbours on a GPU."""

GPU_SPARE = 8
"""Rows proposed beyond k: a GPU adds products in another order, by which nearly equal rows change places."""

_GPU_SCRATCH_BYTES = 64 * 2**20
"""FAISS's default is 1.5 GiB of a GPU's memory for each process and generation."""

_GPU_TESTS = 4
_DEVICE = re.compile(r"(?:cuda|tensorrt)(?::(\d+))?")

MAX_K_FACTOR = 4
"""For more than this many times the k that an approximate index was measured at, search is exact."""

_PROBES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class IndexKind:
    """A kind of FAISS index.

    Attributes:
        least: Fewest vectors that it is built for.
        factory: Returns FAISS's factory string for n vectors of dim numbers.
        efforts: Settings of its search, from fast to thorough.
        shortlists: Multiples of k that it may propose, ascending.
        parameters: FAISS's search parameters for an effort and a selector of rows (None: all rows).
    """

    least: int
    factory: Callable[[int, int], str]
    efforts: tuple[int, ...]
    shortlists: tuple[int, ...]
    parameters: Callable[[int, faiss.IDSelector | None], faiss.SearchParameters]


@dataclass(frozen=True)
class IndexSetting:
    """A kind, and how thoroughly it is searched: `shortlist` times k rows are proposed and then scored exactly."""

    kind: str = "flat"
    effort: int = 0
    shortlist: int = 1


FLAT = IndexSetting()


@dataclass(frozen=True)
class FrozenIndex:
    """The part of an index that never changes.

    Attributes:
        exact: Flat index of all vectors.
        ids: int64 [n], ascending.
        approximate: Index of the same rows; None if the exact one is searched.
        k: The k at which `setting` was measured.
    """

    exact: faiss.Index
    ids: np.ndarray
    approximate: faiss.Index | None = None
    setting: IndexSetting = FLAT
    k: int = 10


class Index:
    """Vectors by id. Several threads may search at the same time; a change waits for them, and they for it."""

    def __init__(
        self, dim: int, frozen: FrozenIndex | None = None, change: int = 0, generation: str = "", device: str = "cpu"
    ) -> None:
        """Make an index.

        Args:
            dim: Length of the vectors.
            frozen: The vectors it starts with.
            change: The store's change that `frozen` contains.
            generation: Name of `frozen`, "" for none.
            device: Where `frozen` is searched: cpu, or cuda, cuda:N or tensorrt if FAISS finds such a GPU.
        """
        self.dim, self.change, self.generation = dim, change, generation
        self._frozen = frozen or FrozenIndex(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        self._main = Segment(self._frozen.exact, self._frozen.ids)
        self._new = Segment.of(dim)
        self._gpu = _copy_to_gpu(self._main, device)
        self._lock = _SharedLock()

    def __len__(self) -> int:
        return len(self._main) + len(self._new)

    @property
    def setting(self) -> IndexSetting:
        return self._frozen.setting

    @property
    def device(self) -> str:
        """The device that searches the frozen part: cpu, or cuda:N."""
        gpu = self._gpu
        return gpu.device if gpu else "cpu"

    @property
    def waiting(self) -> int:
        """The number of vectors that the next compaction adds or removes."""
        return len(self._new.ids) + self._main.removed

    def apply(self, changes: StoreChanges) -> None:
        """Apply the changes of the store since `self.change`. Searches wait, also while the blocks are read."""
        with self._lock.exclusive():
            self._new.add(changes.blocks, max(0, changes.count - len(self)))
            if len(changes.removed):
                self._main.remove(changes.removed)
                self._new.remove(changes.removed)
            self.change = changes.number

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Neighbours:
        """Return the `k` nearest ids to each vector; k is cut to the number of vectors in the index.

        Args:
            vectors: float32 [q, dim].
            k: Number of neighbours.
            exact: Whether to compare all vectors. Otherwise the choice is as good as the index's setting; the
                similarities are always exact.
            among: The ids that may be returned, int64, ascending. They are always searched exactly, as an approximate
                index may find hardly any of a few. Those that do not exist leave unfilled places.
        """
        vectors = np.ascontiguousarray(vectors, np.float32)
        with self._lock.shared():
            k = min(k, len(self) if among is None else len(among))
            similarities, rows = self._search_main(vectors, min(k, len(self._main)), exact, among)
            ids = self._main.ids_of(rows)
            if len(self._new):
                new, new_rows = self._new.search(vectors, min(k, len(self._new)), among)
                similarities = np.concatenate([similarities, new], axis=1)
                ids = np.concatenate([ids, self._new.ids_of(new_rows)], axis=1)
        return top_k(similarities, ids, k)

    def ids(self) -> np.ndarray:
        """Return all ids, int64 [n], ascending."""
        with self._lock.shared():
            return np.concatenate([part.ids[part.alive] for part in (self._main, self._new)])

    def vectors_of(self, ids: np.ndarray) -> Block:
        """Return those of the ids, int64, ascending, that exist, and copies of their vectors, float32 [n, dim]."""
        with self._lock.shared():
            parts = [part.vectors_of(ids) for part in (self._main, self._new)]
        return np.concatenate([present for present, _ in parts]), np.concatenate([vectors for _, vectors in parts])

    def _search_main(self, vectors: np.ndarray, k: int, exact: bool, among: np.ndarray | None) -> Neighbours:
        """Return at least k rows of the frozen part for each vector, in no order."""
        rows = None if exact or among is not None else self._propose(vectors, k)
        if rows is None:
            return self._main.search(vectors, k, among)
        similarities = self._main.similarities(vectors, rows)
        # The lists that were probed may hold fewer than k vectors.
        short = (rows != NO_ROW).sum(axis=1) < k
        if short.any():
            similarities[short], rows[short] = self._main.search(vectors[short], rows.shape[1])
        return similarities, rows

    def _propose(self, vectors: np.ndarray, k: int) -> np.ndarray | None:
        """Return rows int64 [q, p] that may be among the k nearest; None if all rows must be compared."""
        gpu = self._gpu  # another thread may set it to None
        if gpu and 0 < k <= GPU_MAX_K:
            try:
                return gpu.propose(vectors, k)
            except RuntimeError as error:
                logger.warning("the GPU failed, so the CPU searches from now on: %s.", error)
                self._gpu = None
        if self._frozen.approximate is None or not 0 < k <= MAX_K_FACTOR * self._frozen.k:
            return None
        proposed = min(self.setting.shortlist * k, len(self._main))
        return self._main.search_by(self._frozen.approximate, self.setting, vectors, proposed)[1]


class Segment:
    """Vectors and their ids. Not every kind of index can remove rows, so removed ones stay and are hidden."""

    def __init__(self, exact: faiss.Index, ids: np.ndarray) -> None:
        """Take a flat index, and the ids of its rows, int64 [n], ascending."""
        self.exact, self.ids = exact, ids
        self.alive = np.ones(len(ids), np.bool_)
        self.removed = 0
        self._bitmap: np.ndarray | None = None

    @classmethod
    def of(cls, dim: int, blocks: Iterable[Block] = (), expected: int = 0) -> Segment:
        """Return the segment of some vectors in memory; `expected`: their number, if it is known."""
        segment = cls(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        segment.add(blocks, expected)
        return segment

    def __len__(self) -> int:
        return len(self.ids) - self.removed

    def add(self, blocks: Iterable[Block], expected: int = 0) -> None:
        """Add vectors whose ids are larger than all ids so far; `expected` of them get memory at once."""
        if expected:  # FAISS would double its memory as it grows, and copy the vectors
            self.exact.codes.resize((len(self.ids) + expected) * self.exact.code_size)
            self.exact.codes.resize(len(self.ids) * self.exact.code_size)
        ids = [self.ids]
        for block_ids, vectors in blocks:
            self.exact.add(np.ascontiguousarray(vectors, np.float32))
            ids.append(block_ids)
        if len(ids) > 1:
            self.ids = np.concatenate(ids)
            self.alive = np.concatenate([self.alive, np.ones(len(self.ids) - len(self.alive), np.bool_)])
            self._bitmap = None

    def remove(self, ids: np.ndarray) -> None:
        """Hide those of the ids that exist."""
        self.alive &= ~self._among(ids)
        self.removed = len(self.alive) - int(np.count_nonzero(self.alive))
        self._bitmap = None

    def search(self, vectors: np.ndarray, k: int, among: np.ndarray | None = None) -> Neighbours:
        """Search exactly; as `search_by`."""
        return self.search_by(self.exact, FLAT, vectors, k, among)

    def search_by(
        self, index: faiss.Index, setting: IndexSetting, vectors: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> Neighbours:
        """Return the neighbours that an index of these vectors finds, as rows.

        Args:
            index: The index.
            setting: Its kind and effort.
            vectors: float32 [q, dim], contiguous.
            k: Number of neighbours.
            among: The ids that may be returned, int64, ascending; None for all.
        """
        if k == 0 or len(self.ids) == 0:
            return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        bitmap = self._alive_bitmap() if among is None else _bitmap(self.alive & self._among(among))
        selector = None if bitmap is None else faiss.IDSelectorBitmap(bitmap)
        similarities, rows = _faiss_search(index, vectors, k, KINDS[setting.kind].parameters(setting.effort, selector))
        return np.where(rows == NO_ROW, np.float32(-np.inf), similarities), rows

    def similarities(self, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the exact similarity of each query to its rows, float32 [q, p]; `NO_ROW` has -inf.

        Args:
            vectors: float32 [q, dim], contiguous.
            rows: int64 [q, p]; p is at least 1.
        """
        rows, similarities = np.ascontiguousarray(rows), np.empty(rows.shape, np.float32)
        query, result, row = (faiss.swig_ptr(array) for array in (vectors, similarities, rows))
        self.exact.compute_distance_subset(len(vectors), query, rows.shape[1], result, row)
        return similarities

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids of rows, int64; `NO_ROW` stays."""
        return np.where(rows == NO_ROW, NO_ROW, self.ids[rows]) if len(self.ids) else rows

    def vectors(self) -> np.ndarray:
        """Return all rows, also hidden ones, as `stored_vectors`."""
        return stored_vectors(self.exact)

    def vectors_of(self, ids: np.ndarray) -> Block:
        """Return those of the ids, ascending, that exist, and copies of their vectors."""
        rows, present = self._rows_of(ids)
        present[present] = self.alive[rows[present]]
        return ids[present], self.vectors()[rows[present]]

    def _among(self, ids: np.ndarray) -> np.ndarray:
        """Return whether each row has one of the ids, bool [n]."""
        rows, present = self._rows_of(ids)
        chosen = np.zeros(len(self.ids), bool)
        chosen[rows[present]] = True
        return chosen

    def _rows_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of each id, and whether it has one, bool [m]; hidden rows count."""
        rows = np.searchsorted(self.ids, ids)
        present = rows < len(self.ids)
        present[present] = self.ids[rows[present]] == ids[present]
        return rows, present

    def _alive_bitmap(self) -> np.ndarray | None:
        if self.removed and self._bitmap is None:
            self._bitmap = _bitmap(self.alive)
        return self._bitmap if self.removed else None


class _GpuIndex:
    """A copy of one segment's rows on one GPU. Safe to use from several threads; it serves one at a time."""

    def __init__(self, segment: Segment, number: int) -> None:
        """Copy the rows.

        Raises:
            RuntimeError: If the GPU lacks the memory, or finds other rows than the CPU.
        """
        self.device = f"cuda:{number}"
        self._segment, self._lock = segment, threading.Lock()
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(_GPU_SCRATCH_BYTES)
        self._copy = faiss.index_cpu_to_gpu(self._resources, number, segment.exact)
        self._compare_with_cpu()

    def propose(self, vectors: np.ndarray, k: int) -> np.ndarray:
        """Return the `k` nearest rows and a few more, int64 [q, p], for float32 [q, dim].

        Unfilled places are `NO_ROW`; more than p - k of them mean that more rows were removed than a GPU can skip.

        Raises:
            RuntimeError: If the GPU fails.
        """
        segment = self._segment
        rows = self._nearest(vectors, min(k + GPU_SPARE + segment.removed, GPU_MAX_K, len(segment.ids)))
        hidden = (rows == NO_ROW) | ~segment.alive[rows]
        first = np.argsort(hidden, axis=1, kind="stable")[:, : k + GPU_SPARE]
        return np.take_along_axis(np.where(hidden, NO_ROW, rows), first, axis=1)

    def _nearest(self, vectors: np.ndarray, k: int) -> np.ndarray:
        with self._lock:
            return _faiss_search(self._copy, vectors, k, None)[1]

    def _compare_with_cpu(self) -> None:
        stored = self._segment.vectors()
        queries = np.array(stored[np.linspace(0, len(stored) - 1, _GPU_TESTS).astype(np.int64)])
        expected = _faiss_search(self._segment.exact, queries, 1, None)[0][:, 0]
        rows = self._nearest(queries, 1)[:, 0]
        if (rows == NO_ROW).any() or not np.allclose(np.vecdot(stored[rows], queries), expected, atol=1e-5):
            raise RuntimeError("it finds other vectors than a CPU")


def _copy_to_gpu(segment: Segment, device: str) -> _GpuIndex | None:
    """Return a copy of the segment on the GPU that `device` names (cuda, cuda:N, tensorrt).

    Return None for cpu, an empty segment, a GPU that FAISS does not find, and one that fails, which is logged. The CPU
    then finds the same.
    """
    match = _DEVICE.fullmatch(device)
    if match is None or not len(segment.ids):
        return None
    number = int(match[1] or 0)
    if number >= faiss.get_num_gpus():
        return None
    try:
        return _GpuIndex(segment, number)
    except RuntimeError as error:
        logger.warning("the CPU searches, because the GPU failed: %s.", error)
        return None


class _SharedLock:
    """A lock for many readers or one writer. A waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writers = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._writers += 1
            self._condition.wait_for(lambda: not self._readers)
            try:
                yield
            finally:
                self._writers -= 1
                self._condition.notify_all()


def top_k(similarities: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
    """Return the k largest of each row; equal ones in the order of their ids."""
    order = np.lexsort((ids, -similarities), axis=1)[:, :k]
    rows = np.arange(len(order))[:, None]
    return similarities[rows, order], ids[rows, order]


def stored_vectors(exact: faiss.Index) -> np.ndarray:
    """Return the vectors of a flat index, float32 [n, dim]: a view that is valid as long as the index.

    The view of a memory-mapped index is not aligned, and some NumPy functions copy all of such an array first.
    """
    n, dim = exact.ntotal, exact.d
    if n == 0:
        return np.empty((0, dim), np.float32)
    return faiss.rev_swig_ptr(exact.get_xb(), n * dim).reshape(n, dim)


def _faiss_search(
    index: faiss.Index, vectors: np.ndarray, k: int, parameters: faiss.SearchParameters | None
) -> tuple[np.ndarray, np.ndarray]:
    """Search contiguous float32 [q, d] by FAISS's own function.

    faiss.contrib.torch_utils, which pytorch-metric-learning imports, replaces `index.search` in the whole process by
    one that takes no parameters.
    """
    similarities, rows = np.empty((len(vectors), k), np.float32), np.empty((len(vectors), k), np.int64)
    pointers = (faiss.swig_ptr(array) for array in (vectors, similarities, rows))
    query_pointer, *result_pointers = pointers
    index.search_c(len(vectors), query_pointer, k, *result_pointers, parameters)
    return similarities, rows


def find_kind(name: str) -> IndexKind:
    """Return the kind of this name.

    Raises:
        UsageError: If it does not exist (code "unknown-name").
    """
    if name not in KINDS:
        raise unknown("kind of index", name, KINDS)
    return KINDS[name]


def build_index(kind: IndexKind, vectors: np.ndarray) -> faiss.Index:
    """Return a trained index of contiguous float32 [n, dim], in their order."""
    n, dim = vectors.shape
    index = faiss.index_factory(dim, kind.factory(n, dim), faiss.METRIC_INNER_PRODUCT)
    if isinstance(index, faiss.IndexIVF):
        index.cp.min_points_per_centroid = 1  # FAISS would print a warning for each small gallery
    index.train(_training_sample(index, vectors))
    # `add` would copy mapped vectors; in several blocks, a graph would grow by doubling its memory.
    index.add_c(n, faiss.swig_ptr(vectors))
    return index


def _training_sample(index: faiss.Index, vectors: np.ndarray) -> np.ndarray:
    """Return the vectors to train on; 64 per centroid are as good as all."""
    wanted = max(20_000, 64 * getattr(index, "nlist", 0))
    if wanted >= len(vectors):
        return vectors
    return vectors[np.sort(np.random.default_rng(0).choice(len(vectors), wanted, replace=False))]


def _ivf_rabitq(n: int, dim: int) -> str:
    """Return lists around centroids, and one bit for each number of a vector (RaBitQ; Gao and Long, SIGMOD 2024).

    A vector takes dim / 8 bytes, 8 for two factors of its estimate, and 8 for its row. There are a fifth as many lists
    as FAISS's guidelines have: each one that is probed costs a table of the query, and centroids count among the bytes.
    """
    return f"IVF{max(1, int(0.8 * math.sqrt(n)))},RaBitQfs"


def _plain(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParameters(sel=selector)


def _graph(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)


def _inverted(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParametersIVF(nprobe=effort, sel=selector)


def _bitmap(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags, bitorder="little")


KINDS: dict[str, IndexKind] = {
    "flat": IndexKind(0, lambda n, dim: "Flat", (0,), (1,), _plain),
    "flat-fp16": IndexKind(1, lambda n, dim: "SQfp16", (0,), (1, 2), _plain),
    "hnsw": IndexKind(100, lambda n, dim: "HNSW32_SQfp16", (16, 32, 64, 128, 256, 512), (1, 2), _graph),
    "ivf-rabitq": IndexKind(1000, _ivf_rabitq, _PROBES, (2, 4, 8, 16, 32), _inverted),
}
"""All kinds, the simplest first. `flat` is exact; the others are stored beside the exact rows."""
