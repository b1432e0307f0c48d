"""Products of blocks of rows by 8-bit integers, with a proven bound on what rounding the rows changes."""

from __future__ import annotations

import functools
import sys

import numpy as np

from zoo import processor
from zoo.evaluation.graded import Graded, pays
from zoo.evaluation.grades import Grades, have_grades
from zoo.evaluation.matmul import (
    Buffer,
    Float32Products,
    Pairs,
    Workers,
    kth_at_least,
    one_core_each,
    pairs_in_float32,
)
from zoo.evaluation.rounded import Rounded, worth_rounding

_LARGEST = 2**29
"""How many bytes more, a quarter of the gallery's, grades may take."""
_FEW = 32
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
        self._columns = Rounded(gallery, column_block)
        same = queries is gallery and (row_block == column_block or column_block >= len(gallery))
        self._rows = self._columns if same else Rounded(queries, row_block)
        self._whole_products = Buffer(np.int32)
        graded = pays(len(queries), row_block, gallery.size, _LARGEST) and have_grades()
        self._graded = Graded(Grades(self._rows.whole, self._columns.whole), _FEW) if graded else None

    def workers(self) -> Workers:
        return one_core_each()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = self._blocks(rows, columns)
        unit = self._rows.steps[a] * self._columns.steps[b]
        lowest = _whole_floors(floors, self._rows.error(rows, self._columns, b), unit)
        if column_floors is not None:
            column_floors = _whole_floors(column_floors, self._columns.error(columns, self._rows, a), unit)
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
        floors = unit * kth_at_least(whole, k) - (doubt - 1) * error - slack
        r, c, _ = self.where(whole, _whole_floors(floors - slack, error, unit))
        return floors, self._in_float32(rows, columns, r, c)

    def _blocks(self, rows: slice, columns: slice) -> tuple[int, int]:
        return rows.start // self._rows.block, columns.start // self._columns.block

    def _in_float32(self, rows: slice, columns: slice, r: np.ndarray, c: np.ndarray) -> Pairs:
        return r, c, pairs_in_float32(self.queries[rows], self.gallery[columns], r, c)

    def _whole(self, rows: slice, columns: slice) -> np.ndarray:
        queries, gallery = self._rows.whole[rows], self._columns.whole[columns]
        return _int8_product(queries, gallery, self._whole_products.of(len(queries), len(gallery)))


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
    """Whether 8-bit products are worth it and to be had: the rows are `worth_rounding`, the instructions are there."""
    if not worth_rounding(dim):
        return False
    return hasattr(sys.modules["torch"], "_int_mm") and _processor_has_int8() and _sums_are_exact()


def _processor_has_int8() -> bool:
    # Without these instructions the 8-bit product of some libraries saturates, and is not exact.
    return not {"avx512_vnni", "amx_int8"}.isdisjoint(processor.flags() or ())


@functools.cache
def _sums_are_exact() -> bool:
    """As `_processor_has_int8`, computed: whoever sets ONEDNN_MAX_CPU_ISA takes the instructions away."""
    a, b = (np.random.default_rng(0).choice(np.array([-127, 126, 127], np.int8), (n, 256)) for n in (24, 40))
    sums = _int8_product(a, b, np.empty((24, 40), np.int32))
    return bool((sums == a.astype(np.int64) @ b.T.astype(np.int64)).all())
