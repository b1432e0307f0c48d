"""The few pairs of a block whose sums of products reach a floor, found by the grades of all of them."""

from __future__ import annotations

import numpy as np

from zoo.evaluation.grades import BELOW, STEPS, Grades
from zoo.evaluation.matmul import Buffer, entries

Places = tuple[np.ndarray, np.ndarray]
"""Row and column numbers within a block, int64 [p]."""


_BLOCKS = 4
"""Of how many blocks of queries on grades spare more than it takes to bring the gallery in their order."""


class Graded:
    """few: where more than one entry of so many lies above its level, looking at each costs more than grades spare."""

    def __init__(self, grades: Grades, few: int) -> None:
        self._grades, self._few = grades, few
        self._tries, self._masks = _Tries(), Buffer(np.bool_)

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
        r, c, found = entries(grades, np.not_equal(grades, 0, out=self._masks.of(*grades.shape)))
        few = len(found) <= grades.size // self._few
        self._tries.seen(few)
        if not few:
            return None
        sums = levels[c] + step * (found - BELOW)  # the highest grade stands for whatever is above all floors, too
        reached = sums >= lowest[r]
        if column_lowest is not None:
            reached |= sums >= column_lowest[c]
        return r[reached], c[reached]


def pays(queries: int, row_block: int, numbers: int, most: int) -> bool:
    """Whether so many queries, in blocks of so many, are worth keeping the gallery's numbers, at most so many, in the
    order of 8-bit products."""
    return queries >= _BLOCKS * row_block and numbers <= most


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
