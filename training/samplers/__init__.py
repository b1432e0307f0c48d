"""Batch samplers by name.

`training.build` constructs a sampler with those of `labels` int64 [n], `size`, `per_class`, `seed` and `dim` that it
has parameters for, and with the recipe's `batch.args`. A sampler that chooses by embeddings has an array `memory`,
float32 [n, dim]. The training loop writes into it the embeddings of all samples at first, and those of a batch after
each step; it is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from training.samplers.class_weighted import ClassWeighted
from training.samplers.distribution_matching import DDM, FRD
from training.samplers.greedy_coreset import GreedyCoreset
from training.samplers.spc import SPC
from training.samplers.spc_r import SPCR


class Sampler(Protocol):
    """Source of batches. They depend only on the arguments, the epoch and the memory, if there is one."""

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [size], of epoch `number`."""


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "spc": SPC,
    "spc-r": SPCR,
    "m-per-class": SPC,  # the same draw, under the name of Musgrave et al. 2020, A Metric Learning Reality Check
    "class-weighted": ClassWeighted,
    "greedy-coreset": GreedyCoreset,
    "ddm": DDM,
    "frd": FRD,
}
