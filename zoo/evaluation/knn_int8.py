"""8-bit products as a prefilter of the exact search, with proven bounds on their rounding.

Rows are rounded to small integers, whose products processors compute several times as fast as float32. The pairs that
could reach a floor, by the bound on the rounding, get their float32 product, so the results stay those of
`Float32Products`. There are two prefilters: `Int8Products` (VNNI, AMX) computes the integer products in 32 bits, and
`PrefilteredProducts` (AVX2) writes them as one byte each, which is a quarter of the memory traffic.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

import numpy as np

from zoo import paths
from zoo.evaluation.matmul import (
    Buffer,
    Float32Products,
    Pairs,
    Workers,
    kth_lower_bounds,
    masked_entries,
    norm_bounds,
    pair_products_float32,
    single_core_workers,
)

STEPS = 250
"""The number of steps of a coarse product that span the range of interest; the rest of a byte is for rounding."""

MARGIN = 0.25
"""A sum with the coarse product g is less than (g - MARGIN) steps above the level, except for the highest g."""

AVX2_LARGEST = 64
"""The largest integer of gallery rows on AVX2, which adds two products of bytes in 16 bits: these hold 2 x 255 x 64,
but not 2 x 255 x 127."""

AVX2_MAX_NUMBERS = 2**28
"""The largest gallery, in numbers, that is stored twice in 8 bits for AVX2, besides the queries."""

_INT8_MAX_NUMBERS = 2**29
"""The largest gallery, in numbers, that is stored in the order of coarse products besides `Int8Products`."""

_AVX2_SPARSITY = 12
_INT8_SPARSITY = 32
"""If more than one entry per this many passes the prefilter, checking each one costs more than the prefilter saves.

Multiplying in float32 takes so much longer on AVX2 that more pairs may be checked one by one there.
"""

_MIN_BLOCKS = 4
"""The number of blocks of queries from which storing the gallery in the order of coarse products pays."""

Places = tuple[np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p]."""


class PrefilteredProducts(Float32Products):
    """`Float32Products` with a prefilter of coarse 8-bit products, about twice as fast on AVX2.

    The bound on the rounding is that of `Int8Products`, but the integers of gallery rows go to `AVX2_LARGEST` only, in
    a step per row. Blocks without a useful floor, such as the first, are multiplied in float32.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._rows = QuantizedRows(queries, row_block)
        self._columns = QuantizedRows(gallery, column_block, AVX2_LARGEST, per_row=True)
        coarsest = self._columns.steps.max()
        scales = (self._columns.steps / coarsest).astype(np.float32)
        self._units = self._rows.steps * coarsest
        coarse = CoarseProducts(self._rows.integers, self._columns.integers, scales)
        self._prefilter = Prefilter(coarse, _AVX2_SPARSITY)

    def workers(self) -> Workers:
        return single_core_workers()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = rows.start // self._rows.block, columns.start // self._columns.block
        lowest = (floors - self._rows.error_bounds(rows, self._columns, b)) / self._units[a]
        column_lowest = None
        if column_floors is not None:
            column_lowest = (column_floors - self._columns.error_bounds(columns, self._rows, a)) / self._units[a]
        places = self._prefilter.candidates(rows, columns, lowest, column_lowest)
        if places is None:
            return super().reaching(rows, columns, floors, column_floors)
        return *places, pair_products_float32(self.queries[rows], self.gallery[columns], *places)


class Int8Products(Float32Products):
    """`Float32Products` by 8-bit integers, which processors with VNNI or AMX multiply several times as fast.

    Each block of rows is rounded to integer multiples of one step. With x = x' + e (x' the rounded row, e the error)

        q g = q' g' + e_q g + q' e_g,    |q g - q' g'| <= |e_q| |g| + |q'| |e_g|    (Cauchy-Schwarz),

    and q' g' is exact: a step squared times a sum of integers. The pairs that could reach a floor by that bound get
    their float32 product, so the result is that of `Float32Products`.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._columns = QuantizedRows(gallery, column_block)
        same = queries is gallery and (row_block == column_block or column_block >= len(gallery))
        self._rows = self._columns if same else QuantizedRows(queries, row_block)
        self._integer_products = Buffer(np.int32)
        coarse = prefilter_pays(len(queries), row_block, gallery.size, _INT8_MAX_NUMBERS) and coarse_products_work()
        self._prefilter = (
            Prefilter(CoarseProducts(self._rows.integers, self._columns.integers), _INT8_SPARSITY) if coarse else None
        )

    def workers(self) -> Workers:
        return single_core_workers()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = self._block_numbers(rows, columns)
        unit = self._rows.steps[a] * self._columns.steps[b]
        lowest = _integer_floors(floors, self._rows.error_bounds(rows, self._columns, b), unit)
        if column_floors is not None:
            column_floors = _integer_floors(column_floors, self._columns.error_bounds(columns, self._rows, a), unit)
        places = self._prefilter.candidates(rows, columns, lowest, column_floors) if self._prefilter else None
        if places is None:
            places = self.select(self._multiply(rows, columns), lowest, column_floors)[:2]
        return self._in_float32(rows, columns, *places)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, margin: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        a, b = self._block_numbers(rows, columns)
        unit, error = self._rows.steps[a] * self._columns.steps[b], self._rows.error_bounds(rows, self._columns, b)
        products = self._multiply(rows, columns)
        # Products of the k that reach the integer bound are at most one error below it, mostly far less.
        floors = unit * kth_lower_bounds(products, k) - (margin - 1) * error - slack
        r, c, _ = self.select(products, _integer_floors(floors - slack, error, unit))
        return floors, self._in_float32(rows, columns, r, c)

    def _block_numbers(self, rows: slice, columns: slice) -> tuple[int, int]:
        return rows.start // self._rows.block, columns.start // self._columns.block

    def _in_float32(self, rows: slice, columns: slice, r: np.ndarray, c: np.ndarray) -> Pairs:
        return r, c, pair_products_float32(self.queries[rows], self.gallery[columns], r, c)

    def _multiply(self, rows: slice, columns: slice) -> np.ndarray:
        queries, gallery = self._rows.integers[rows], self._columns.integers[columns]
        return _int8_product(queries, gallery, self._integer_products.matrix(len(queries), len(gallery)))


class QuantizedRows:
    """Rows rounded to 8-bit integers: `integers` int8 [n, d], their steps, and bounds on lengths and rounding errors.

    Args:
        rows: Float32 [n, d].
        block: The number of rows per block.
        largest: The largest integer.
        per_row: Use one step per row instead of one per block. `steps`, float64, is the value of the integer 1.
    """

    def __init__(self, rows: np.ndarray, block: int, largest: int = 127, per_row: bool = False) -> None:
        self.block, self._largest = block, largest
        self.integers = np.empty(rows.shape, np.int8)
        self.norms = norm_bounds(rows)
        self.errors = np.empty(len(rows))
        starts = list(range(0, len(rows), block))
        self.steps = np.concatenate([self._round(rows[start : start + block], start, per_row) for start in starts])
        self._longest = np.maximum.reduceat(self.norms, starts)
        self._largest_errors = np.maximum.reduceat(self.errors, starts)

    def error_bounds(self, rows: slice, others: QuantizedRows, block: int) -> np.ndarray:
        """Return the bound on |q g - q' g'| of each of these rows with all rows of one block of the others."""
        errors = self.errors[rows]
        products = errors * others._longest[block] + (self.norms[rows] + errors) * others._largest_errors[block]
        return products * (1 + 1e-6)

    def _round(self, rows: np.ndarray, start: int, per_row: bool) -> np.ndarray:
        block = slice(start, start + len(rows))
        largest = np.abs(rows).max(axis=1 if per_row else None, keepdims=True).astype(np.float64)
        steps = (np.maximum(largest, 2.0**-100) / self._largest).astype(np.float32)
        rounded = np.rint(rows / steps)
        self.integers[block] = np.clip(rounded, -self._largest, self._largest, out=rounded)
        # The error is measured after all rounding; the added term covers the rounding of this measurement.
        rounded *= steps
        rounded -= rows
        self.errors[block] = norm_bounds(rounded) + 1e-6 * self.norms[block]
        return steps[:, 0].astype(np.float64)


class CoarseProducts:
    """Products of rows int8 [n, d] with columns int8 [m, d] as one byte each: the steps above a level.

    Torch's quantised linear layer writes the bytes while it multiplies, so a search for the few large products reads a
    quarter of the memory. The columns are stored in the order in which they are multiplied, m x d bytes; this takes a
    few times as long as multiplying them with a thousand rows.

    Args:
        rows: Int8 [n, d].
        columns: Int8 [m, d].
        scales: Float32 [m], at most 1: factors of the columns' products, by default 1.

    Attributes:
        largest: An upper bound on all products.
        least_step: The smallest step. Below it the rounding of single precision could reach a quarter of a step.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, scales: np.ndarray | None = None) -> None:
        self._rows, self._columns = rows, columns
        self._scales = np.ones(len(columns), np.float32) if scales is None else scales
        self._packed: dict[tuple[int, int], Any] = {}
        self.largest = 127.0**2 * columns.shape[1]
        self.least_step = 2.0**-18 * self.largest

    def block(self, rows: slice, columns: slice, levels: np.ndarray, step: float) -> np.ndarray:
        """Return the coarse products of a block, uint8 [r, c].

        0 means below the column's level, and the highest value means any larger product.

        Args:
            rows: The rows.
            columns: The columns.
            levels: [c], within the range of the products.
            step: The distance between two coarse products, `least_step` or more.
        """
        import torch

        signed = self._rows[rows]
        # The layer takes numbers from 0 to 255, and subtracts the contribution of the offset 128.
        unsigned = torch.from_numpy(signed.view(np.uint8) ^ np.uint8(128))
        packed, scales, zeros = self._pack(columns, len(signed))
        start = torch.from_numpy((step - levels).astype(np.float32))
        layer = torch.ops.onednn.qlinear_pointwise
        coarse: np.ndarray = layer(
            unsigned, 1.0, 128, packed, scales, zeros, start, step, 0, torch.uint8, "none", [], ""
        ).numpy()
        return coarse

    def _pack(self, columns: slice, rows: int) -> tuple[Any, Any, Any]:
        """Return the columns in the order of the layer, their scales, and their zeros."""
        import torch

        block = columns.start, columns.stop
        packed = self._packed.get(block)
        if packed is None:
            weights = torch.from_numpy(self._columns[columns])
            ordered = torch.ops.onednn.qlinear_prepack(weights, [rows, weights.shape[1]])
            # The program may have set another default device in torch.
            zeros = torch.zeros(len(weights), dtype=torch.int64, device="cpu")
            packed = self._packed[block] = ordered, torch.from_numpy(self._scales[columns]), zeros
        return packed


class Prefilter:
    """Candidate pairs of a block, selected by their coarse products.

    Args:
        coarse: The coarse products.
        sparsity: If more than one entry per this many passes, the prefilter does not pay.
    """

    def __init__(self, coarse: CoarseProducts, sparsity: int) -> None:
        self._coarse, self._sparsity = coarse, sparsity
        self._backoff, self._masks = _Backoff(), Buffer(np.bool_)

    def candidates(
        self, rows: slice, columns: slice, lowest: np.ndarray, column_lowest: np.ndarray | None
    ) -> Places | None:
        """Return the pairs that reach the floor of their row or column, and a few more.

        Args:
            rows: The rows.
            columns: The columns.
            lowest: The floors of the rows [r], in units of the integer products.
            column_lowest: The floors of the columns [c], likewise.

        Returns:
            The pairs, or None where the prefilter would pass too many.
        """
        largest = self._coarse.largest
        levels = np.full(columns.stop - columns.start, min(lowest.min(), 2 * largest), np.float64)
        top = lowest.max()
        if column_lowest is not None:
            np.minimum(levels, column_lowest, out=levels)
            top = max(top, column_lowest.max())
        if levels.min() < -largest or not self._backoff.due():
            return None
        step = max((min(top, largest) - levels.min()) / STEPS, self._coarse.least_step)
        coarse = self._coarse.block(rows, columns, levels, step)
        r, c, values = masked_entries(coarse, np.not_equal(coarse, 0, out=self._masks.matrix(*coarse.shape)))
        sparse = len(values) <= coarse.size // self._sparsity
        self._backoff.record(sparse)
        if not sparse:
            return None
        bounds = levels[c] + step * (values - MARGIN)  # the highest value also stands for all above the floors
        reached = bounds >= lowest[r]
        if column_lowest is not None:
            reached |= bounds >= column_lowest[c]
        return r[reached], c[reached]


class _Backoff:
    """Schedule of retries: after each failure, one more block is skipped before the next try.

    If all of n blocks fail, about the root of 2 n are tried. Threads may count slightly wrongly, which does no harm.
    """

    def __init__(self) -> None:
        self._failures, self._left = 0, 0

    def due(self) -> bool:
        self._left -= 1
        return self._left < 0

    def record(self, success: bool) -> None:
        self._failures = self._failures // 2 if success else self._failures + 1
        self._left = 0 if success else self._failures


def can_multiply_int8(dim: int) -> bool:
    """Return True if `Int8Products` are available and worth it (`_quantization_pays`), and the processor has them."""
    if not _quantization_pays(dim):
        return False
    return hasattr(sys.modules["torch"], "_int_mm") and _processor_has_int8() and _sums_are_exact()


def can_prefilter(dim: int) -> bool:
    """Return True if `PrefilteredProducts` are available and worth it: see `_quantization_pays`; and there is AVX2."""
    return _quantization_pays(dim) and _processor_has_avx2() and coarse_products_work(AVX2_LARGEST)


def _quantization_pays(dim: int) -> bool:
    """Return True if rows of `dim` dimensions are worth rounding, torch is loaded already, and FAISS is installed.

    Shorter rows are multiplied fast enough; the sums of rows beyond 2^17 dimensions could overflow 32 bits.
    """
    return 64 <= dim <= 2**17 and "torch" in sys.modules and importlib.util.find_spec("faiss") is not None


def prefilter_pays(queries: int, row_block: int, numbers: int, max_numbers: int) -> bool:
    """Return True if the queries are worth storing the gallery in the order of coarse products.

    Args:
        queries: The number of queries.
        row_block: The number of queries in a block.
        numbers: The size of the gallery, rows times dimensions.
        max_numbers: The largest size of a gallery to store.
    """
    return queries >= _MIN_BLOCKS * row_block and numbers <= max_numbers


@functools.cache
def coarse_products_work(largest: int = 127) -> bool:
    """Return True if torch (which must be loaded) has the layer of `CoarseProducts` and it computes correctly.

    It is tried on columns of integers up to `largest`.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (24, 64)).astype(np.int8)
    columns = rng.integers(-largest, largest + 1, (40, 64)).astype(np.int8)
    rows[:12], columns[:20] = np.where(rows[:12] < 0, -127, 127), np.where(columns[:20] < 0, -largest, largest)
    sums = rows.astype(np.int64) @ columns.T.astype(np.int64)
    levels = rng.integers(-(10**4), 10**4, 40)
    products = CoarseProducts(rows, columns)
    step = float(products.least_step)
    try:
        coarse = products.block(slice(0, 24), slice(0, 40), levels, step)
    except (AttributeError, RuntimeError, TypeError):  # this torch lacks the layer, or it takes other arguments
        return False
    steps = (sums - levels) / step
    below = (steps < np.where(coarse == 0, 0, coarse - MARGIN)) | (coarse == 255)
    above = (steps >= coarse - 2.0) | (coarse == 0)  # a constant would satisfy the bound, but be useless
    return bool((below & above).all())


def _processor_has_avx2() -> bool:
    return "avx2" in (paths.cpu_flags() or ())


def _processor_has_int8() -> bool:
    # Without these instructions the 8-bit product of some libraries saturates, and is not exact.
    return not {"avx512_vnni", "amx_int8"}.isdisjoint(paths.cpu_flags() or ())


@functools.cache
def _sums_are_exact() -> bool:
    """Check `_processor_has_int8` by computing: the variable ONEDNN_MAX_CPU_ISA can disable the instructions."""
    a, b = (np.random.default_rng(0).choice(np.array([-127, 126, 127], np.int8), (n, 256)) for n in (24, 40))
    sums = _int8_product(a, b, np.empty((24, 40), np.int32))
    return bool((sums == a.astype(np.int64) @ b.T.astype(np.int64)).all())


def _integer_floors(floors: np.ndarray, errors: np.ndarray, unit: float) -> np.ndarray:
    """Return the least sums of integers that could stand for products at the floors, int32."""
    with np.errstate(over="ignore"):
        lowest = np.floor((floors - errors) / unit) - 1
    return np.clip(lowest, -(2.0**31) + 1, 2.0**31 - 1).astype(np.int32)


def _int8_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    import torch

    torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).T, out=torch.from_numpy(out))
    return out
