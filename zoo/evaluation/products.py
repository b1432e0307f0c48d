"""Blocks of inner products, and the few of them that reach a floor, in float32 or by a faster product with a bound."""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from zoo.evaluation.workers import Workers

UNIT_ROUNDOFF = 2.0**-24

_MANY = 8
"""Beyond how many pairs a query they are worth a step of their own."""
_GATHERED = 2**16
"""How many numbers of pairs are gathered at a time."""

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p], and the float32 products of those rows, [p]."""


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The rows' Euclidean lengths, summed in double precision: float64 [n]."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


def lengths_at_most(rows: np.ndarray) -> np.ndarray:
    """Proven upper bounds on the rows' Euclidean lengths, little above them: float64 [n].

    Far quicker than `row_norms`: squares are summed in single precision, wrong by at most gamma_d of their sum (see
    neighbours._slack) and by 2^-126 each where they underflow.
    """
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    if not np.isfinite(squares).all():
        return row_norms(rows) * (1 + UNIT_ROUNDOFF)
    terms = (rows.shape[1] + 8) * UNIT_ROUNDOFF
    bounds: np.ndarray = np.sqrt(squares / (1 - terms) + 2 * rows.shape[1] * 2.0**-126)
    return bounds


class Float32Products:
    """Products of blocks of queries [q, d] with blocks of the gallery [n, d], both float32.

    workers() are as many threads as had best ask at a time: one, as NumPy's product takes all cores itself.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray) -> None:
        self.queries, self.gallery = queries, gallery
        self._products, self._masks = Buffer(np.float32), (Buffer(np.bool_), Buffer(np.bool_))

    def workers(self) -> Workers:
        return Workers(1)

    def all_of(self, rows: slice, columns: slice) -> np.ndarray:
        """The block's products, float32 [r, c]: a buffer, good until the next call."""
        queries, gallery = self.queries[rows], self.gallery[columns]
        return np.matmul(queries, gallery.T, out=self._products.of(len(queries), len(gallery)))

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        """The pairs of a block whose product reaches the floor of its row or of its column, row by row."""
        return self.where(self.all_of(rows, columns), floors, column_floors)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, doubt: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        """Floors, float64 [r], and among others the pairs of a block that reach the floor of their row.

        Of each row k products reach the floor even when it is raised by the slack [r]: this is proven for a doubt of
        2, and left to be seen for less, which spares pairs where products are rounded. Where a block has fewer columns
        the floors are -inf.
        """
        products = self.all_of(rows, columns)
        floors = kth_at_least(products, k) - slack
        return floors, self.where(products, floors.astype(np.float32))

    def where(self, products: np.ndarray, floors: np.ndarray, column_floors: np.ndarray | None = None) -> Pairs:
        """The entries of a matrix that reach the floor of their row or of their column, row by row."""
        mask, other = (masks.of(*products.shape) for masks in self._masks)
        np.greater_equal(products, floors[:, None], out=mask)
        if column_floors is not None:
            mask |= np.greater_equal(products, column_floors, out=other)
        found = np.flatnonzero(mask)
        rows = found // products.shape[1]
        return rows, found - rows * products.shape[1], products.ravel()[found]


class Int8Products(Float32Products):
    """The same by 8-bit integers, which processors with VNNI or AMX multiply several times as fast.

    Each block of rows is rounded to whole multiples of one step. With x = x' + e (x' the rounded row, e the error)

        q g = q' g' + e_q g + q' e_g,    |q g - q' g'| <= |e_q| |g| + |q'| |e_g|    (Cauchy-Schwarz),

    and q' g' is exact: a step squared times a sum of integers. The pairs that could reach a floor by that bound get
    their float32 product, so what is returned is what `Float32Products` returns.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._columns = _Rounded(gallery, column_block)
        same = queries is gallery and (row_block == column_block or column_block >= len(gallery))
        self._rows = self._columns if same else _Rounded(queries, row_block)
        self._whole_products = Buffer(np.int32)

    def workers(self) -> Workers:
        """As many as torch computes with: each computes blocks of its own on one core, and waits for no other."""
        import faiss
        import torch

        threads = torch.get_num_threads()

        def on_one_core() -> None:
            faiss.omp_set_num_threads(1)
            torch.set_num_threads(1)
            torch.get_num_threads()  # else the thread takes the number of all threads over when it first computes

        return Workers(threads, on_one_core, lambda: torch.set_num_threads(threads))

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = self._blocks(rows, columns)
        unit = self._rows.steps[a] * self._columns.steps[b]
        lowest = _whole_floors(floors, self._rows.error(rows, self._columns, b), unit)
        if column_floors is not None:
            column_floors = _whole_floors(column_floors, self._columns.error(columns, self._rows, a), unit)
        r, c, _ = self.where(self._whole(rows, columns), lowest, column_floors)
        return r, c, pairs_in_float32(self.queries[rows], self.gallery[columns], r, c)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, doubt: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        a, b = self._blocks(rows, columns)
        unit, error = self._rows.steps[a] * self._columns.steps[b], self._rows.error(rows, self._columns, b)
        whole = self._whole(rows, columns)
        # Products of the k that reach the whole number lie at most one error below it, mostly far less.
        floors = unit * kth_at_least(whole, k) - (doubt - 1) * error - slack
        r, c, _ = self.where(whole, _whole_floors(floors - slack, error, unit))
        return floors, (r, c, pairs_in_float32(self.queries[rows], self.gallery[columns], r, c))

    def _blocks(self, rows: slice, columns: slice) -> tuple[int, int]:
        return rows.start // self._rows.block, columns.start // self._columns.block

    def _whole(self, rows: slice, columns: slice) -> np.ndarray:
        queries, gallery = self._rows.whole[rows], self._columns.whole[columns]
        return _int8_product(queries, gallery, self._whole_products.of(len(queries), len(gallery)))


class _Rounded:
    """Rows as 8-bit integers: whole int8 [n, d]; each block's step; bounds on each row's length and rounding error."""

    def __init__(self, rows: np.ndarray, block: int) -> None:
        self.block = block
        self.whole = np.empty(rows.shape, np.int8)
        self.norms = lengths_at_most(rows)
        self.errors = np.empty(len(rows))
        starts = list(range(0, len(rows), block))
        self.steps = np.array([self._round(rows[start : start + block], start) for start in starts])
        self.longest = np.maximum.reduceat(self.norms, starts)
        self.coarsest = np.maximum.reduceat(self.errors, starts)

    def _round(self, rows: np.ndarray, start: int) -> float:
        block = slice(start, start + len(rows))
        step = np.float32(max(float(np.abs(rows).max()), 2.0**-100) / 127)
        whole = np.rint(rows / step)
        self.whole[block] = np.clip(whole, -127, 127, out=whole)
        # The error is measured, whatever rounding came before; what is added covers the rounding of measuring it.
        whole *= step
        whole -= rows
        self.errors[block] = lengths_at_most(whole) + 1e-6 * self.norms[block]
        return float(step)

    def error(self, rows: slice, others: _Rounded, block: int) -> np.ndarray:
        """The bound on |q g - q' g'| of each of our rows with all rows of one block of the others."""
        errors = self.errors[rows]
        return (errors * others.longest[block] + (self.norms[rows] + errors) * others.coarsest[block]) * (1 + 1e-6)


class Buffer(threading.local):
    """Memory for matrices of any shape, kept: fresh pages cost more than the arithmetic on them. Each thread has its
    own."""

    def __init__(self, dtype: Any) -> None:
        self._memory = np.empty(0, dtype)

    def of(self, rows: int, columns: int) -> np.ndarray:
        if self._memory.size < rows * columns:
            self._memory = np.empty(rows * columns, self._memory.dtype)
        return self._memory[: rows * columns].reshape(rows, columns)


def kth_at_least(products: np.ndarray, k: int) -> np.ndarray:
    """For each row of products [r, c] a number that at least k of them reach, and few more: float64 [r].

    The columns are dealt out to groups; the k-th largest of the groups' maxima is reached in k groups, so by k
    products at least. With four times as many groups as k some 1.15 k reach it. -inf where there are not k columns.
    """
    rows, columns = products.shape
    if columns < k:
        return np.full(rows, -np.inf)
    groups = min(columns, max(4 * k, 256))
    size = columns // groups
    highest = products[:, : size * groups].reshape(rows, size, groups).max(axis=1)
    kth: np.ndarray = np.partition(highest, groups - k, axis=1)[:, groups - k].astype(np.float64)
    return kth


def _whole_floors(floors: np.ndarray, errors: np.ndarray, unit: float) -> np.ndarray:
    """The least sums of integers that could stand for products at the floors, int32."""
    with np.errstate(over="ignore"):
        lowest = np.floor((floors - errors) / unit) - 1
    return np.clip(lowest, -(2.0**31) + 1, 2.0**31 - 1).astype(np.int32)


def _int8_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    import torch

    torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).T, out=torch.from_numpy(out))
    return out


def has_int8(dim: int) -> bool:
    """Whether 8-bit products are worth it and to be had: torch is loaded already, FAISS and the instructions are there.

    Short rows are multiplied fast enough; the sums of rows beyond 2^17 dimensions could overflow 32 bits.
    """
    if not (64 <= dim <= 2**17 and "torch" in sys.modules and importlib.util.find_spec("faiss")):
        return False
    return hasattr(sys.modules["torch"], "_int_mm") and _processor_has_int8()


@functools.cache
def _processor_has_int8() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    # Without these instructions the 8-bit product of some libraries saturates, and is not exact.
    return "avx512_vnni" in flags or "amx_int8" in flags


def pairs_in_float32(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], float32 [p]."""
    import faiss

    out = np.empty(len(rows), np.float32)
    pointer = faiss.swig_ptr
    faiss.pairwise_indexed_inner_product(
        queries.shape[1], len(rows), pointer(queries), pointer(rows), pointer(gallery), pointer(columns), pointer(out)
    )
    return out


def pairs_in_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], rows ascending, summed in double precision, as float32."""
    asked, starts = np.unique(rows, return_index=True)
    if len(rows) <= _MANY * len(asked):
        return _pairs_in_double(queries, gallery, rows, columns)
    # Query by query, so that what is gathered stays in the cache.
    out = np.empty(len(rows), np.float32)
    gathered, doubled = Buffer(np.float32), Buffer(np.float64)
    for row, start, end in zip(asked.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        near = doubled.of(end - start, gallery.shape[1])
        single = gathered.of(end - start, gallery.shape[1])
        near[...] = np.take(gallery, columns[start:end], axis=0, out=single, mode="clip")
        # Not by BLAS: it would wake threads for little.
        out[start:end] = np.einsum("ij,j->i", near, queries[row].astype(np.float64))
    return out


def _pairs_in_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows), np.float32)
    step = max(1, _GATHERED // queries.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        a, b = queries[rows[part]].astype(np.float64), gallery[columns[part]].astype(np.float64)
        out[part] = np.einsum("ij,ij->i", a, b)
    return out
