"""The kinds of index that a gallery can have, each as a FAISS index over inner products of unit rows.

An approximate kind proposes rows; the gallery then scores them by their exact vectors, so that similarities are exact
whatever the kind, and a kind only decides which rows are looked at. Removed rows are left out by a selector, which
every kind takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zoo.errors import UsageError, missing, nearest

try:
    import faiss
except ImportError:
    raise missing("faiss", "cpu") from None


@dataclass(frozen=True)
class Kind:
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
class Setting:
    """A kind, and how thoroughly it is searched: `shortlist` times k rows are proposed, then scored exactly."""

    kind: str = "flat"
    effort: int = 0
    shortlist: int = 1


FLAT = Setting()


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise UsageError(f"no kind of index {name!r}.{nearest(name, KINDS)} Known: {', '.join(KINDS)}.")
    return KINDS[name]


def build(kind: Kind, vectors: np.ndarray) -> faiss.Index:
    """A trained index of `vectors`, float32 [n, dim], contiguous, in their order."""
    index = kind.make(*vectors.shape)
    index.train(_sample(index, vectors))
    # Not by `add`, which would copy vectors that are mapped; in blocks, a graph would grow by doubling its memory.
    index.add_c(len(vectors), faiss.swig_ptr(vectors))
    return index


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


_PROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

KINDS: dict[str, Kind] = {
    "flat": Kind("exact, float32", 0, _flat, (0,), (1,), _plain),
    "flat-fp16": Kind("all rows in half precision", 1, _half, (0,), (1, 2), _plain),
    "hnsw": Kind("a graph of neighbours", 100, _hnsw, (16, 32, 64, 128, 256, 512), (1, 2), _graph),
    "ivf-sq8": Kind("lists around centroids, 8 bits a number", 1000, _ivf_sq8, _PROBES, (1, 4), _inverted),
    "ivf-pq": Kind("lists around centroids, product quantised", 1000, _ivf_pq, _PROBES, (1, 4, 16, 64), _inverted),
}
"""Every kind. `flat` is exact; each other one is built beside the exact rows. A new one is one entry here."""
