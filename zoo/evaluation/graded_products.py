"""Products of blocks of rows in float32, of which most are spared by grades: for processors with AVX2 and no more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

from zoo.evaluation.graded import Graded
from zoo.evaluation.grades import Grades, have_grades
from zoo.evaluation.products import Float32Products, Pairs, pairs_in_float32
from zoo.evaluation.rounded import Rounded
from zoo.evaluation.workers import Workers, one_core_each

LARGEST = 64
"""These processors add two products of bytes in 16 bits, which hold 2 x 255 x 64 and not 2 x 255 x 127."""
_BLOCKS, _BYTES = 4, 2**28
"""From how many blocks of queries on, and up to how many bytes of the gallery in 8 bits, kept twice, grades pay."""
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


def pays(queries: int, numbers: int, row_block: int) -> bool:
    """Whether so many queries are worth rounding a gallery of so many numbers, and the memory that it takes."""
    return queries >= _BLOCKS * row_block and numbers <= _BYTES


def has_grades(dim: int) -> bool:
    """Whether they are to be had and worth it: torch is loaded already, FAISS is there, and the processor has AVX2."""
    if not (64 <= dim <= 2**17 and "torch" in sys.modules and importlib.util.find_spec("faiss")):
        return False
    return _processor_has_avx2() and have_grades(LARGEST)


def _processor_has_avx2() -> bool:
    try:
        return "avx2" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
