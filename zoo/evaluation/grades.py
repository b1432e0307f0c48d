"""Sums of products of 8-bit integers as one byte each: in which of 255 steps above a level they lie.

A byte is a quarter of what the sum takes, and torch's quantised linear layer writes it while it multiplies, so that
whoever looks for the few large sums goes through a quarter of the memory.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

STEPS = 250
"""How many steps are to span the range that the caller wants to tell apart; the rest is for rounding."""
BELOW = 0.25
"""A sum graded g lies less than (g - BELOW) steps above the level, but for the highest grade."""


class Grades:
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
def have_grades(largest: int = 127) -> bool:
    """Whether torch, which must be loaded, has that layer and it computes what is said here of columns whose numbers
    go up to `largest`."""
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (24, 64)).astype(np.int8)
    columns = rng.integers(-largest, largest + 1, (40, 64)).astype(np.int8)
    rows[:12], columns[:20] = np.where(rows[:12] < 0, -127, 127), np.where(columns[:20] < 0, -largest, largest)
    sums = rows.astype(np.int64) @ columns.T.astype(np.int64)
    levels = rng.integers(-(10**4), 10**4, 40)
    step = float(Grades(rows, columns).least_step)
    try:
        grades = Grades(rows, columns).of(slice(0, 24), slice(0, 40), levels, step)
    except (AttributeError, RuntimeError, TypeError):  # not in this torch, or by other arguments
        return False
    steps = (sums - levels) / step
    below = (steps < np.where(grades == 0, 0, grades - BELOW)) | (grades == 255)
    above = (steps >= grades - 2.0) | (grades == 0)  # grades that tell nothing apart would be right, and of no use
    return bool((below & above).all())
