"""Blocks of inner products, and the few of them that reach a floor, in float32 or by a faster product with a bound."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

UNIT_ROUNDOFF = 2.0**-24

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p], and the float32 products of those rows, [p]."""


def row_norms(rows: np.ndarray) -> np.ndarray:
    """The rows' Euclidean lengths, summed in double precision: float64 [n]."""
    norms: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return norms


class Float32Products:
    """Products of blocks of queries [q, d] with blocks of the gallery [n, d], both float32."""

    def __init__(self, queries: np.ndarray, gallery: np.ndarray) -> None:
        self.queries, self.gallery = queries, gallery
        self._products, self._masks = Buffer(np.float32), (Buffer(np.bool_), Buffer(np.bool_))

    def all_of(self, rows: slice, columns: slice) -> np.ndarray:
        """The block's products, float32 [r, c]: a buffer, good until the next call."""
        queries, gallery = self.queries[rows], self.gallery[columns]
        return np.matmul(queries, gallery.T, out=self._products.of(len(queries), len(gallery)))

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        """The pairs of a block whose product reaches the floor of its row or of its column, row by row."""
        return self.where(self.all_of(rows, columns), floors, column_floors)

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
        self._rows = _Rounded(queries, row_block)
        same = queries is gallery and row_block == column_block
        self._columns = self._rows if same else _Rounded(gallery, column_block)
        self._whole_products = Buffer(np.int32)

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = rows.start // self._rows.block, columns.start // self._columns.block
        unit = self._rows.steps[a] * self._columns.steps[b]
        lowest = _whole_floors(floors, self._rows.error(rows, self._columns, b), unit)
        if column_floors is not None:
            column_floors = _whole_floors(column_floors, self._columns.error(columns, self._rows, a), unit)
        queries, gallery = self._rows.whole[rows], self._columns.whole[columns]
        products = _int8_product(queries, gallery, self._whole_products.of(len(queries), len(gallery)))
        r, c, _ = self.where(products, lowest, column_floors)
        return r, c, pairs_in_float32(self.queries[rows], self.gallery[columns], r, c)


class _Rounded:
    """Rows as 8-bit integers: whole int8 [n, d]; each block's step; each row's lengths and rounding error."""

    def __init__(self, rows: np.ndarray, block: int) -> None:
        self.block = block
        self.whole = np.empty(rows.shape, np.int8)
        self.norms = row_norms(rows)
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
        self.errors[block] = row_norms(whole - rows) + 1e-6 * self.norms[block]
        return float(step)

    def error(self, rows: slice, others: _Rounded, block: int) -> np.ndarray:
        """The bound on |q g - q' g'| of each of our rows with all rows of one block of the others."""
        errors = self.errors[rows]
        return (errors * others.longest[block] + (self.norms[rows] + errors) * others.coarsest[block]) * (1 + 1e-6)


class Buffer:
    """Memory for matrices of any shape, kept: fresh pages cost more than the arithmetic on them."""

    def __init__(self, dtype: Any) -> None:
        self._memory = np.empty(0, dtype)

    def of(self, rows: int, columns: int) -> np.ndarray:
        if self._memory.size < rows * columns:
            self._memory = np.empty(rows * columns, self._memory.dtype)
        return self._memory[: rows * columns].reshape(rows, columns)


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
    faiss.pairwise_indexed_inner_product(  # type: ignore[attr-defined]
        queries.shape[1], len(rows), pointer(queries), pointer(rows), pointer(gallery), pointer(columns), pointer(out)
    )
    return out


def pairs_in_double(queries: np.ndarray, gallery: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Inner products of queries[rows] with gallery[columns], rows ascending, summed in double precision, as float32.

    Query by query, so that what is gathered stays in the cache.
    """
    out = np.empty(len(rows), np.float32)
    asked, starts = np.unique(rows, return_index=True)
    ends = [*starts[1:], len(rows)] if len(rows) else []
    gathered, doubled = Buffer(np.float32), Buffer(np.float64)
    for row, start, end in zip(asked.tolist(), starts, ends, strict=True):
        near = doubled.of(end - start, gallery.shape[1])
        single = gathered.of(end - start, gallery.shape[1])
        near[...] = np.take(gallery, columns[start:end], axis=0, out=single, mode="clip")
        out[start:end] = near @ queries[row].astype(np.float64)
    return out
