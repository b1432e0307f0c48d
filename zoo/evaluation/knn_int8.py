"""8-bit products as prefilter of the exact search.

Sums of products of 8-bit integers as one byte each: in which of 255 steps above a level they lie.

A byte is a quarter of what the sum takes, and torch's quantised linear layer writes it while it multiplies, so that
whoever looks for the few large sums goes through a quarter of the memory.

The few pairs of a block whose sums of products reach a floor, found by the grades of all of them.

Rows rounded to small integers, with proven bounds on what that changes of their products.

Products of blocks of rows in float32, of which most are spared by grades: for processors with AVX2 and no more.

Products of blocks of rows by 8-bit integers, with a proven bound on what rounding the rows changes.
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
"""How many steps are to span the range that the caller wants to tell apart; the rest is for rounding."""
MARGIN = 0.25
"""A sum graded g lies less than (g - BELOW) steps above the level, but for the highest grade."""


class CoarseProducts:
    """Of the sums of products of rows int8 [n, d] with columns int8 [m, d], block by block.

    Columns are kept in the order in which they are multiplied, m x d bytes: to bring them there takes a few times as
    long as to multiply them with a thousand rows.

    scales: float32 [m], up to 1: what the sums of a column count for, 1 unless given. largest: beyond all sums.
    least_step: below it the rounding of single precision, in which sums are graded, could reach a quarter of a step.
    """

    def __init__(self, rows: np.ndarray, columns: np.ndarray, scales: np.ndarray | None = None) -> None:
        self._rows, self._columns = rows, columns
        self._scales = np.ones(len(columns), np.float32) if scales is None else scales
        self._packed: dict[tuple[int, int], Any] = {}
        self.largest = 127.0**2 * columns.shape[1]
        self.least_step = 2.0**-18 * self.largest

    def of(self, rows: slice, columns: slice, levels: np.ndarray, step: float) -> np.ndarray:
        """The grades of a block, uint8 [r, c]: 0 for sums below their column's level alone, the highest for all above.

        levels: [c], within what sums can be; step: a sum's distance from one grade to the next, `least_step` or more.
        """
        import torch

        signed = self._rows[rows]
        # The layer takes numbers from 0 to 255, and the sum of what 128 adds to each off again.
        unsigned = torch.from_numpy(signed.view(np.uint8) ^ np.uint8(128))
        packed, scales, zeros = self._pack(columns, len(signed))
        start = torch.from_numpy((step - levels).astype(np.float32))
        operation = torch.ops.onednn.qlinear_pointwise
        grades = operation(unsigned, 1.0, 128, packed, scales, zeros, start, step, 0, torch.uint8, "none", [], "")
        found: np.ndarray = grades.numpy()
        return found

    def _pack(self, columns: slice, rows: int) -> tuple[Any, Any, Any]:
        """The columns as the layer wants them, their scales, and their zeros."""
        import torch

        block = columns.start, columns.stop
        known = self._packed.get(block)
        if known is None:
            weights = torch.from_numpy(self._columns[columns])
            packed = torch.ops.onednn.qlinear_prepack(weights, [rows, weights.shape[1]])
            # The program may have set another device as torch's default.
            zeros = torch.zeros(len(weights), dtype=torch.int64, device="cpu")
            known = packed, torch.from_numpy(self._scales[columns]), zeros
            self._packed[block] = known
        return known


@functools.cache
def coarse_products_work(largest: int = 127) -> bool:
    """Whether torch, which must be loaded, has that layer and it computes what is said here of columns whose numbers
    go up to `largest`."""
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (24, 64)).astype(np.int8)
    columns = rng.integers(-largest, largest + 1, (40, 64)).astype(np.int8)
    rows[:12], columns[:20] = np.where(rows[:12] < 0, -127, 127), np.where(columns[:20] < 0, -largest, largest)
    sums = rows.astype(np.int64) @ columns.T.astype(np.int64)
    levels = rng.integers(-(10**4), 10**4, 40)
    step = float(CoarseProducts(rows, columns).least_step)
    try:
        grades = CoarseProducts(rows, columns).of(slice(0, 24), slice(0, 40), levels, step)
    except (AttributeError, RuntimeError, TypeError):  # not in this torch, or by other arguments
        return False
    steps = (sums - levels) / step
    below = (steps < np.where(grades == 0, 0, grades - MARGIN)) | (grades == 255)
    above = (steps >= grades - 2.0) | (grades == 0)  # grades that tell nothing apart would be right, and of no use
    return bool((below & above).all())


Places = tuple[np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p]."""


_MIN_BLOCKS = 4
"""Of how many blocks of queries on grades spare more than it takes to bring the gallery in their order."""


class Prefilter:
    """few: where more than one entry of so many lies above its level, looking at each costs more than grades spare."""

    def __init__(self, grades: CoarseProducts, few: int) -> None:
        self._grades, self._few = grades, few
        self._tries, self._masks = _Backoff(), Buffer(np.bool_)

    def reaching(
        self, rows: slice, columns: slice, lowest: np.ndarray, column_lowest: np.ndarray | None
    ) -> Places | None:
        """The pairs whose sum reaches the floor of its row or column, and a few; None where grades part too few.

        lowest: [r]; column_lowest: [c]; in units of the sums.
        """
        largest = self._grades.largest
        levels = np.full(columns.stop - columns.start, min(lowest.min(), 2 * largest), np.float64)
        top = lowest.max()
        if column_lowest is not None:
            np.minimum(levels, column_lowest, out=levels)
            top = max(top, column_lowest.max())
        if levels.min() < -largest or not self._tries.due():
            return None
        step = max((min(top, largest) - levels.min()) / STEPS, self._grades.least_step)
        grades = self._grades.of(rows, columns, levels, step)
        r, c, found = masked_entries(grades, np.not_equal(grades, 0, out=self._masks.of(*grades.shape)))
        few = len(found) <= grades.size // self._few
        self._tries.seen(few)
        if not few:
            return None
        sums = levels[c] + step * (found - MARGIN)  # the highest grade stands for whatever is above all floors, too
        reached = sums >= lowest[r]
        if column_lowest is not None:
            reached |= sums >= column_lowest[c]
        return r[reached], c[reached]


def prefilter_pays(queries: int, row_block: int, numbers: int, most: int) -> bool:
    """Whether so many queries, in blocks of so many, are worth keeping the gallery's numbers, at most so many, in the
    order of 8-bit products."""
    return queries >= _MIN_BLOCKS * row_block and numbers <= most


class _Backoff:
    """When to try again what is of use in some blocks and not in others: each time it was not, after one block more.

    Of n blocks in which it is of no use about the root of 2 n are tried. Threads may count a little wrongly, which does
    no harm.
    """

    def __init__(self) -> None:
        self._failures, self._left = 0, 0

    def due(self) -> bool:
        self._left -= 1
        return self._left < 0

    def seen(self, success: bool) -> None:
        self._failures = self._failures // 2 if success else self._failures + 1
        self._left = 0 if success else self._failures


class QuantizedRows:
    """Rows as 8-bit integers up to `largest`: whole int8 [n, d], their steps, and bounds on lengths and errors.

    steps: float64, what one is worth: a number a block of so many rows, or, `singly`, one a row.
    """

    def __init__(self, rows: np.ndarray, block: int, largest: int = 127, singly: bool = False) -> None:
        self.block, self._largest = block, largest
        self.whole = np.empty(rows.shape, np.int8)
        self.norms = norm_bounds(rows)
        self.errors = np.empty(len(rows))
        starts = list(range(0, len(rows), block))
        self.steps = np.concatenate([self._round(rows[start : start + block], start, singly) for start in starts])
        self._longest = np.maximum.reduceat(self.norms, starts)
        self._coarsest = np.maximum.reduceat(self.errors, starts)

    def _round(self, rows: np.ndarray, start: int, singly: bool) -> np.ndarray:
        block = slice(start, start + len(rows))
        largest = np.abs(rows).max(axis=1 if singly else None, keepdims=True).astype(np.float64)
        steps = (np.maximum(largest, 2.0**-100) / self._largest).astype(np.float32)
        whole = np.rint(rows / steps)
        self.whole[block] = np.clip(whole, -self._largest, self._largest, out=whole)
        # The error is measured, whatever rounding came before; what is added covers the rounding of measuring it.
        whole *= steps
        whole -= rows
        self.errors[block] = norm_bounds(whole) + 1e-6 * self.norms[block]
        return steps[:, 0].astype(np.float64)

    def error(self, rows: slice, others: QuantizedRows, block: int) -> np.ndarray:
        """The bound on |q g - q' g'| of each of our rows with all rows of one block of the others."""
        errors = self.errors[rows]
        return (errors * others._longest[block] + (self.norms[rows] + errors) * others._coarsest[block]) * (1 + 1e-6)


def quantization_pays(dim: int) -> bool:
    """Whether rows of so many dimensions are, where torch is loaded already, which multiplies them, and FAISS is there.

    Short rows are multiplied fast enough; the sums of rows beyond 2^17 dimensions could overflow 32 bits.
    """
    return 64 <= dim <= 2**17 and "torch" in sys.modules and importlib.util.find_spec("faiss") is not None


AVX2_LARGEST = 64
"""These processors add two products of bytes in 16 bits, which hold 2 x 255 x 64 and not 2 x 255 x 127."""
AVX2_MAX_NUMBERS = 2**28
"""How many numbers a gallery has at most that is kept twice in 8 bits, beside the queries."""
_AVX2_SPARSITY = 12
"""To multiply all in float32 takes so much longer that many pairs may be looked at one by one."""


class PrefilteredProducts(Float32Products):
    """`Float32Products` that multiplies 8-bit integers first, which AVX2 does about twice as fast.

    The bound on the rounding is that of `Int8Products`, but a gallery row's numbers go to 64 only, in steps of its own.
    What no floor parts, as the first products of all, is multiplied in float32.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._rows, self._columns = (
            QuantizedRows(queries, row_block),
            QuantizedRows(gallery, column_block, AVX2_LARGEST, singly=True),
        )
        coarsest = self._columns.steps.max()
        scales = (self._columns.steps / coarsest).astype(np.float32)
        self._units = self._rows.steps * coarsest
        self._graded = Prefilter(CoarseProducts(self._rows.whole, self._columns.whole, scales), _AVX2_SPARSITY)

    def workers(self) -> Workers:
        return single_core_workers()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = rows.start // self._rows.block, columns.start // self._columns.block
        lowest = (floors - self._rows.error(rows, self._columns, b)) / self._units[a]
        column_lowest = None
        if column_floors is not None:
            column_lowest = (column_floors - self._columns.error(columns, self._rows, a)) / self._units[a]
        places = self._graded.reaching(rows, columns, lowest, column_lowest)
        if places is None:
            return super().reaching(rows, columns, floors, column_floors)
        return *places, pair_products_float32(self.queries[rows], self.gallery[columns], *places)


def can_prefilter(dim: int) -> bool:
    """Whether they are to be had and worth it: the rows are `worth_rounding`, and the processor has AVX2."""
    return quantization_pays(dim) and _processor_has_avx2() and coarse_products_work(AVX2_LARGEST)


def _processor_has_avx2() -> bool:
    return "avx2" in (paths.cpu_flags() or ())


_INT8_MAX_NUMBERS = 2**29
"""How many bytes more, a quarter of the gallery's, grades may take."""
_INT8_SPARSITY = 32
"""Where more than one entry of so many lies above its level, looking at each costs more than grades spare."""


class Int8Products(Float32Products):
    """The same by 8-bit integers, which processors with VNNI or AMX multiply several times as fast.

    Each block of rows is rounded to whole multiples of one step. With x = x' + e (x' the rounded row, e the error)

        q g = q' g' + e_q g + q' e_g,    |q g - q' g'| <= |e_q| |g| + |q'| |e_g|    (Cauchy-Schwarz),

    and q' g' is exact: a step squared times a sum of integers. The pairs that could reach a floor by that bound get
    their float32 product, so what is returned is what `Float32Products` returns.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._columns = QuantizedRows(gallery, column_block)
        same = queries is gallery and (row_block == column_block or column_block >= len(gallery))
        self._rows = self._columns if same else QuantizedRows(queries, row_block)
        self._whole_products = Buffer(np.int32)
        graded = prefilter_pays(len(queries), row_block, gallery.size, _INT8_MAX_NUMBERS) and coarse_products_work()
        self._graded = (
            Prefilter(CoarseProducts(self._rows.whole, self._columns.whole), _INT8_SPARSITY) if graded else None
        )

    def workers(self) -> Workers:
        return single_core_workers()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = self._blocks(rows, columns)
        unit = self._rows.steps[a] * self._columns.steps[b]
        lowest = _integer_floors(floors, self._rows.error(rows, self._columns, b), unit)
        if column_floors is not None:
            column_floors = _integer_floors(column_floors, self._columns.error(columns, self._rows, a), unit)
        pairs = self._graded.reaching(rows, columns, lowest, column_floors) if self._graded else None
        if pairs is None:
            pairs = self.where(self._whole(rows, columns), lowest, column_floors)[:2]
        return self._in_float32(rows, columns, *pairs)

    def highest(
        self, rows: slice, columns: slice, k: int, slack: np.ndarray, doubt: float = 2
    ) -> tuple[np.ndarray, Pairs]:
        a, b = self._blocks(rows, columns)
        unit, error = self._rows.steps[a] * self._columns.steps[b], self._rows.error(rows, self._columns, b)
        whole = self._whole(rows, columns)
        # Products of the k that reach the whole number lie at most one error below it, mostly far less.
        floors = unit * kth_lower_bounds(whole, k) - (doubt - 1) * error - slack
        r, c, _ = self.where(whole, _integer_floors(floors - slack, error, unit))
        return floors, self._in_float32(rows, columns, r, c)

    def _blocks(self, rows: slice, columns: slice) -> tuple[int, int]:
        return rows.start // self._rows.block, columns.start // self._columns.block

    def _in_float32(self, rows: slice, columns: slice, r: np.ndarray, c: np.ndarray) -> Pairs:
        return r, c, pair_products_float32(self.queries[rows], self.gallery[columns], r, c)

    def _whole(self, rows: slice, columns: slice) -> np.ndarray:
        queries, gallery = self._rows.whole[rows], self._columns.whole[columns]
        return _int8_product(queries, gallery, self._whole_products.of(len(queries), len(gallery)))


def _integer_floors(floors: np.ndarray, errors: np.ndarray, unit: float) -> np.ndarray:
    """The least sums of integers that could stand for products at the floors, int32."""
    with np.errstate(over="ignore"):
        lowest = np.floor((floors - errors) / unit) - 1
    return np.clip(lowest, -(2.0**31) + 1, 2.0**31 - 1).astype(np.int32)


def _int8_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    import torch

    torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).T, out=torch.from_numpy(out))
    return out


def can_multiply_int8(dim: int) -> bool:
    """Whether 8-bit products are worth it and to be had: the rows are `worth_rounding`, the instructions are there."""
    if not quantization_pays(dim):
        return False
    return hasattr(sys.modules["torch"], "_int_mm") and _processor_has_int8() and _sums_are_exact()


def _processor_has_int8() -> bool:
    # Without these instructions the 8-bit product of some libraries saturates, and is not exact.
    return not {"avx512_vnni", "amx_int8"}.isdisjoint(paths.cpu_flags() or ())


@functools.cache
def _sums_are_exact() -> bool:
    """As `_processor_has_int8`, computed: whoever sets ONEDNN_MAX_CPU_ISA takes the instructions away."""
    a, b = (np.random.default_rng(0).choice(np.array([-127, 126, 127], np.int8), (n, 256)) for n in (24, 40))
    sums = _int8_product(a, b, np.empty((24, 40), np.int32))
    return bool((sums == a.astype(np.int64) @ b.T.astype(np.int64)).all())
