"""Rows rounded to small integers, with proven bounds on what that changes of their products."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np

from zoo.evaluation.matmul import lengths_at_most


class Rounded:
    """Rows as 8-bit integers up to `largest`: whole int8 [n, d], their steps, and bounds on lengths and errors.

    steps: float64, what one is worth: a number a block of so many rows, or, `singly`, one a row.
    """

    def __init__(self, rows: np.ndarray, block: int, largest: int = 127, singly: bool = False) -> None:
        self.block, self._largest = block, largest
        self.whole = np.empty(rows.shape, np.int8)
        self.norms = lengths_at_most(rows)
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
        self.errors[block] = lengths_at_most(whole) + 1e-6 * self.norms[block]
        return steps[:, 0].astype(np.float64)

    def error(self, rows: slice, others: Rounded, block: int) -> np.ndarray:
        """The bound on |q g - q' g'| of each of our rows with all rows of one block of the others."""
        errors = self.errors[rows]
        return (errors * others._longest[block] + (self.norms[rows] + errors) * others._coarsest[block]) * (1 + 1e-6)


def worth_rounding(dim: int) -> bool:
    """Whether rows of so many dimensions are, where torch is loaded already, which multiplies them, and FAISS is there.

    Short rows are multiplied fast enough; the sums of rows beyond 2^17 dimensions could overflow 32 bits.
    """
    return 64 <= dim <= 2**17 and "torch" in sys.modules and importlib.util.find_spec("faiss") is not None
