"""Products of blocks of rows in float32, of which most are spared by grades: for processors with AVX2 and no more."""

from __future__ import annotations

import numpy as np

from zoo import processor
from zoo.evaluation.graded import Graded
from zoo.evaluation.grades import Grades, have_grades
from zoo.evaluation.matmul import Float32Products, Pairs, Workers, one_core_each, pairs_in_float32
from zoo.evaluation.rounded import Rounded, worth_rounding

LARGEST = 64
"""These processors add two products of bytes in 16 bits, which hold 2 x 255 x 64 and not 2 x 255 x 127."""
MOST = 2**28
"""How many numbers a gallery has at most that is kept twice in 8 bits, beside the queries."""
_FEW = 12
"""To multiply all in float32 takes so much longer that many pairs may be looked at one by one."""


class GradedProducts(Float32Products):
    """`Float32Products` that multiplies 8-bit integers first, which AVX2 does about twice as fast.

    The bound on the rounding is that of `Int8Products`, but a gallery row's numbers go to 64 only, in steps of its own.
    What no floor parts, as the first products of all, is multiplied in float32.
    """

    def __init__(self, queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> None:
        super().__init__(queries, gallery)
        self._rows, self._columns = Rounded(queries, row_block), Rounded(gallery, column_block, LARGEST, singly=True)
        coarsest = self._columns.steps.max()
        scales = (self._columns.steps / coarsest).astype(np.float32)
        self._units = self._rows.steps * coarsest
        self._graded = Graded(Grades(self._rows.whole, self._columns.whole, scales), _FEW)

    def workers(self) -> Workers:
        return one_core_each()

    def reaching(self, rows: slice, columns: slice, floors: np.ndarray, column_floors: np.ndarray | None) -> Pairs:
        a, b = rows.start // self._rows.block, columns.start // self._columns.block
        lowest = (floors - self._rows.error(rows, self._columns, b)) / self._units[a]
        column_lowest = None
        if column_floors is not None:
            column_lowest = (column_floors - self._columns.error(columns, self._rows, a)) / self._units[a]
        places = self._graded.reaching(rows, columns, lowest, column_lowest)
        if places is None:
            return super().reaching(rows, columns, floors, column_floors)
        return *places, pairs_in_float32(self.queries[rows], self.gallery[columns], *places)


def has_grades(dim: int) -> bool:
    """Whether they are to be had and worth it: the rows are `worth_rounding`, and the processor has AVX2."""
    return worth_rounding(dim) and _processor_has_avx2() and have_grades(LARGEST)


def _processor_has_avx2() -> bool:
    return "avx2" in (processor.flags() or ())
