"""The index in memory: FAISS indexes of frozen rows, changes since, and removals.

An approximate index proposes rows, and their exact vectors decide the order. New vectors wait in a flat index and
removed ones are skipped by a bitmap until a compaction (serving.gallery.index_files).
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
from zoo.errors import UsageError, missing, nearest

try:
    import faiss
except ImportError:
    raise missing("faiss", "cpu") from None


_PROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NO_ROW = -1
"""The id of a place that no vector took."""

logger = logging.getLogger(__name__)
GPU_MAX_K = 2048
"""FAISS's limit of neighbours on a GPU."""

GPU_SPARE = 8
"""Rows proposed beyond those wanted: a GPU sums products in another order, by which nearly equal rows change places."""

_SCRATCH_BYTES = 64 * 2**20
"""FAISS would take 1.5 GiB of a GPU's memory for its own use, in each process and for each generation."""

_TRIED = 4
_NAMED = re.compile(r"(?:cuda|tensorrt)(?::(\d+))?")
MAX_K_FACTOR = 4
"""Up to how many times the k that an approximate index was measured at it is asked; beyond, the search is exact."""

_PIECE = 32
Neighbours = tuple[np.ndarray, np.ndarray]
"""Similarities float32 [q, k] and ids int64 [q, k], best first; places that nothing took are -inf and -1."""


@dataclass(frozen=True)
class IndexKind:
    """How one kind is built and searched.

    least: the fewest vectors that it is built for. make: an untrained index for n vectors of dim numbers. efforts: the
    settings to try, ascending, from quick to thorough. shortlists: likewise, how many times k rows are proposed.
    parameters: FAISS's search parameters for an effort and a selector of rows (None: all rows).
    """

    summary: str
    least: int
    make: Callable[[int, int], faiss.Index]
    efforts: tuple[int, ...]
    shortlists: tuple[int, ...]
    parameters: Callable[[int, faiss.IDSelector | None], faiss.SearchParameters]


@dataclass(frozen=True)
class IndexSetting:
    """A kind, and how thoroughly it is searched: `shortlist` times k rows are proposed, then scored exactly."""

    kind: str = "flat"
    effort: int = 0
    shortlist: int = 1


def find_kind(name: str) -> IndexKind:
    if name not in KINDS:
        raise UsageError(f"no kind of index {name!r}.{nearest(name, KINDS)} Known: {', '.join(KINDS)}.")
    return KINDS[name]


def build_index(kind: IndexKind, vectors: np.ndarray) -> faiss.Index:
    """A trained index of `vectors`, float32 [n, dim], contiguous, in their order."""
    index = kind.make(*vectors.shape)
    index.train(_sample(index, vectors))
    # Not by `add`, which would copy vectors that are mapped; in blocks, a graph would grow by doubling its memory.
    index.add_c(len(vectors), faiss.swig_ptr(vectors))
    return index


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
        kind: IndexKind,
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
        similarities, rows = faiss_search(index, vectors, k, kind.parameters(effort, selector))
        return np.where(rows == NO_ROW, np.float32(-np.inf), similarities), rows

    def ids_of(self, rows: np.ndarray) -> np.ndarray:
        """The ids, int64, of rows; -1 stays -1."""
        if not len(self.ids):
            return rows
        return np.where(rows == NO_ROW, NO_ROW, self.ids[rows])

    def vectors(self) -> np.ndarray:
        """All rows, float32 [n, dim], those that are gone as well: a view that lives as long as the index."""
        return stored_vectors(self.exact)

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


def stored_vectors(exact: faiss.Index) -> np.ndarray:
    """A flat index's vectors, float32 [n, dim]: a view that lives as long as it. In a mapped one numbers do not lie at
    addresses that NumPy calls aligned: some of its functions copy all of such an array first.
    """
    n, dim = exact.ntotal, exact.d
    if n == 0:
        return np.empty((0, dim), np.float32)
    return faiss.rev_swig_ptr(exact.get_xb(), n * dim).reshape(n, dim)


def faiss_search(
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


class GpuIndex:
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
        rows = self._nearest(vectors, min(k + GPU_SPARE + segment.gone, GPU_MAX_K, len(segment.ids)))
        gone = (rows == NO_ROW) | ~segment.alive[rows]
        first = np.argsort(gone, axis=1, kind="stable")[:, : k + GPU_SPARE]
        return np.take_along_axis(np.where(gone, NO_ROW, rows), first, axis=1)

    def _nearest(self, vectors: np.ndarray, k: int) -> np.ndarray:
        with self._lock:
            return faiss_search(self._copy, vectors, k, None)[1]

    def _try(self) -> None:
        """Raise `RuntimeError` unless some of the rows find what the CPU finds for them."""
        known = self._segment.vectors()
        some = np.array(known[np.linspace(0, len(known) - 1, _TRIED).astype(np.int64)])
        expected, rows = faiss_search(self._segment.exact, some, 1, None)[0][:, 0], self._nearest(some, 1)[:, 0]
        if (rows == NO_ROW).any() or not np.allclose(np.vecdot(known[rows], some), expected, atol=1e-5):
            raise RuntimeError("it does not find what a CPU finds")


def copy_to_gpu(segment: Segment, device: str) -> GpuIndex | None:
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
        return GpuIndex(segment, number)
    except RuntimeError as error:
        logger.warning("vectors are searched on the CPU, as the GPU does not take them: %s.", error)
        return None


class SharedLock:
    """Held by many readers or by one writer; a waiting writer goes before new readers."""

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


FLAT = IndexSetting()


@dataclass(frozen=True)
class FrozenIndex:
    """The part of an index that never changes.

    exact: a flat index of all vectors; ids: int64 [n], ascending; approximate: an index of the same rows, None where
    the exact one is searched; k: the one that `setting` was measured at.
    """

    exact: faiss.Index
    ids: np.ndarray
    approximate: faiss.Index | None = None
    setting: IndexSetting = FLAT
    k: int = 10


class Index:
    """Vectors by id. Searches run side by side; a change waits for them and they for it."""

    def __init__(
        self, dim: int, frozen: FrozenIndex | None = None, change: int = 0, generation: str = "", device: str = "cpu"
    ) -> None:
        """`change`: the store's change that `frozen` holds; `generation`: its name, "" for none.

        device: where that part is searched: cpu, or a GPU as `serving.gallery.index` takes it.
        """
        self.dim, self.change, self.generation = dim, change, generation
        self._frozen = frozen or FrozenIndex(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        self._main = Segment(self._frozen.exact, self._frozen.ids)
        self._side = Segment(faiss.IndexFlatIP(dim), np.empty(0, np.int64))
        self._graphics = copy_to_gpu(self._main, device)
        self._lock = SharedLock()

    def __len__(self) -> int:
        return len(self._main) + len(self._side)

    @property
    def setting(self) -> IndexSetting:
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

    def apply(self, changes: StoreChanges) -> None:
        """Apply the changes of the store since `self.change`. Searches wait, also while the blocks are read."""
        with self._lock.exclusive():
            self._side.add(changes.blocks, max(0, changes.count - len(self)))
            if len(changes.removed):
                self._main.remove(changes.removed)
                self._side.remove(changes.removed)
            self.change = changes.number

    def search(self, vectors: np.ndarray, k: int, exact: bool = False, among: np.ndarray | None = None) -> Neighbours:
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
        return top_k(similarities, ids, k)

    def ids(self) -> np.ndarray:
        """The ids of all that is there, int64 [n], ascending."""
        with self._lock.shared():
            return np.concatenate([part.ids[part.alive] for part in (self._main, self._side)])

    def vectors_of(self, ids: np.ndarray) -> Block:
        """Those of the ids, int64, ascending, that are there, and their vectors, float32 [n, dim], copied."""
        with self._lock.shared():
            parts = [part.vectors_of(ids) for part in (self._main, self._side)]
        return np.concatenate([found for found, _ in parts]), np.concatenate([vectors for _, vectors in parts])

    def _search_main(self, vectors: np.ndarray, k: int, exact: bool, among: np.ndarray | None) -> Neighbours:
        """At least k rows for each vector, with their exact similarities, in no order."""
        rows = None if exact or among is not None else self._proposed(vectors, k)
        if rows is None:
            return self._search_exactly(self._main, vectors, k, among)
        similarities = self._scores(vectors, rows)
        # Lists that were looked into may hold fewer than k: the search promises k where there are k.
        short = (rows != NO_ROW).sum(axis=1) < k
        if short.any():
            similarities[short], rows[short] = self._search_exactly(self._main, vectors[short], rows.shape[1])
        return similarities, rows

    def _proposed(self, vectors: np.ndarray, k: int) -> np.ndarray | None:
        """Rows int64 [q, p] among which the k nearest are looked for; None where all rows are to be looked at."""
        graphics = self._graphics  # which another thread may give up meanwhile
        if graphics and 0 < k <= GPU_MAX_K:
            try:
                return graphics.propose(vectors, k)
            except RuntimeError as error:
                logger.warning("vectors are searched on the CPU from now on, as the GPU failed: %s.", error)
                self._graphics = None
        if self._frozen.approximate is None or k > MAX_K_FACTOR * self._frozen.k:
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
        scores[rows == NO_ROW] = -np.inf
        return scores

    def _search_exactly(
        self, part: Segment, vectors: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> Neighbours:
        return part.search(part.exact, KINDS["flat"], 0, vectors, k, among)


def top_k(similarities: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
    """The k largest of each row; equal ones in the order of their ids."""
    order = np.lexsort((ids, -similarities), axis=1)[:, :k]
    return np.take_along_axis(similarities, order, axis=1), np.take_along_axis(ids, order, axis=1)


def _sample(index: faiss.Index, vectors: np.ndarray) -> np.ndarray:
    """The vectors to train on: 64 to a centroid are as good as all of them."""
    wanted = max(20_000, 64 * getattr(index, "nlist", 0))
    if wanted >= len(vectors):
        return vectors
    return vectors[np.sort(np.random.default_rng(0).choice(len(vectors), wanted, replace=False))]


def _flat(n: int, dim: int) -> faiss.Index:
    return faiss.IndexFlatIP(dim)


def _half(n: int, dim: int) -> faiss.Index:
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)


def _hnsw(n: int, dim: int) -> faiss.Index:
    """32 links a row over rows in half precision: the exact ones are beside them anyway."""
    return faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, 32, faiss.METRIC_INNER_PRODUCT)


def _ivf_sq8(n: int, dim: int) -> faiss.Index:
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFScalarQuantizer(
        coarse, dim, _lists(n), faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    return _owning(index, coarse)


def _ivf_pq(n: int, dim: int) -> faiss.Index:
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, _lists(n), _parts(dim), 8, faiss.METRIC_INNER_PRODUCT)
    index.pq.cp.min_points_per_centroid = 1
    # A few rounds on a few points: what coarser codes miss is made up for by a longer shortlist.
    index.pq.cp.niter, index.pq.cp.max_points_per_centroid = 10, 64
    return _owning(index, coarse)


def _owning(index: faiss.IndexIVF, coarse: faiss.Index) -> faiss.Index:
    # Python must not free the coarse quantiser while the index lives.
    coarse.this.disown()
    index.own_fields = True
    # Small galleries may use these kinds too; FAISS would print a warning for each.
    index.cp.min_points_per_centroid = 1
    return index


def _lists(n: int) -> int:
    """How many lists: about 4 sqrt(n), as FAISS's guidelines say, and never fewer than 39 vectors in one."""
    return max(1, min(int(4 * math.sqrt(n)), n // 39))


def _parts(dim: int) -> int:
    """How many bytes a vector of `dim` numbers is coded in: a divisor of dim, at most a quarter of it."""
    return max(part for part in range(1, max(1, dim // 4) + 1) if dim % part == 0)


def _plain(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParameters(sel=selector)


def _graph(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParametersHNSW(efSearch=effort, sel=selector)


def _inverted(effort: int, selector: faiss.IDSelector | None) -> faiss.SearchParameters:
    return faiss.SearchParametersIVF(nprobe=effort, sel=selector)


KINDS: dict[str, IndexKind] = {
    "flat": IndexKind("exact, float32", 0, _flat, (0,), (1,), _plain),
    "flat-fp16": IndexKind("all rows in half precision", 1, _half, (0,), (1, 2), _plain),
    "hnsw": IndexKind("a graph of neighbours", 100, _hnsw, (16, 32, 64, 128, 256, 512), (1, 2), _graph),
    "ivf-sq8": IndexKind("lists around centroids, 8 bits a number", 1000, _ivf_sq8, _PROBES, (1, 4), _inverted),
    "ivf-pq": IndexKind("lists around centroids, product quantised", 1000, _ivf_pq, _PROBES, (1, 4, 16, 64), _inverted),
}
"""Every kind. `flat` is exact; each other one is built beside the exact rows. A new one is one entry here."""


def _packed(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags, bitorder="little")
