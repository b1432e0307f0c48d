"""Products of blocks of rows by 8-bit integers, with a proven bound on what rounding the rows changes."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np

from zoo.evaluation.grades import BELOW, STEPS, Grades, have_grades
from zoo.evaluation.products import (
    Buffer,
    Float32Products,
    Pairs,
    entries,
    kth_at_least,
    lengths_at_most,
    pairs_in_float32,
)
from zoo.evaluation.workers import Workers

_BLOCKS = 4
"""Of how many blocks of queries on grades spare more than it takes to bring the gallery in their order."""
_LARGEST = 2**29
"""How many bytes more, a quarter of the gallery's, that may take."""
_LARGEST_SUM = 127**2
"""Of the products of one dimension."""
_FEW = 32
"""Where more than one entry of so many lies above its level, looking at each costs more than grades spare."""

Places = tuple[np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p]."""


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
        self._grades = Grades(self._rows.whole, self._columns.whole)
        pays = len(queries) >= _BLOCKS * row_block and self._columns.whole.nbytes <= _LARGEST
        self._grading = _Tries() if pays and have_grades() else None

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
        pairs = self._graded_reaching(rows, columns, lowest, column_floors)
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
        floors = unit * kth_at_least(whole, k) - (doubt - 1) * error - slack
        r, c, _ = self.where(whole, _whole_floors(floors - slack, error, unit))
        return floors, self._in_float32(rows, columns, r, c)

    def _graded_reaching(
        self, rows: slice, columns: slice, lowest: np.ndarray, column_lowest: np.ndarray | None
    ) -> Places | None:
        """The pairs whose sum reaches the floor of its row or column, by grades; None where these part too few."""
        levels = np.full(columns.stop - columns.start, lowest.min(), np.float64)
        top = lowest.max()
        if column_lowest is not None:
            np.minimum(levels, column_lowest, out=levels)
            top = max(top, column_lowest.max())
        largest = _LARGEST_SUM * self.gallery.shape[1]
        if self._grading is None or levels.min() < -largest or not self._grading.due():
            return None
        step = max((min(top, largest) - levels.min()) / STEPS, self._grades.least_step)
        grades = self._grades.of(rows, columns, levels, step)
        r, c, found = entries(grades, np.not_equal(grades, 0, out=self._masks[0].of(*grades.shape)))
        few = len(found) <= grades.size // _FEW
        self._grading.seen(few)
        if not few:
            return None
        sums = levels[c] + step * (found - BELOW)  # the highest grade stands for whatever is above all floors, too
        reached = sums >= lowest[r]
        if column_lowest is not None:
            reached |= sums >= column_lowest[c]
        return r[reached], c[reached]

    def _blocks(self, rows: slice, columns: slice) -> tuple[int, int]:
        return rows.start // self._rows.block, columns.start // self._columns.block

    def _in_float32(self, rows: slice, columns: slice, r: np.ndarray, c: np.ndarray) -> Pairs:
        return r, c, pairs_in_float32(self.queries[rows], self.gallery[columns], r, c)

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


class _Tries:
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
    return hasattr(sys.modules["torch"], "_int_mm") and _processor_has_int8() and _sums_are_exact()


@functools.cache
def _processor_has_int8() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    # Without these instructions the 8-bit product of some libraries saturates, and is not exact.
    return "avx512_vnni" in flags or "amx_int8" in flags


@functools.cache
def _sums_are_exact() -> bool:
    """As `_processor_has_int8`, computed: whoever sets ONEDNN_MAX_CPU_ISA takes the instructions away."""
    a, b = (np.random.default_rng(0).choice(np.array([-127, 126, 127], np.int8), (n, 256)) for n in (24, 40))
    sums = _int8_product(a, b, np.empty((24, 40), np.int32))
    return bool((sums == a.astype(np.int64) @ b.T.astype(np.int64)).all())
