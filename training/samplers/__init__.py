"""Batch samplers by name.

`training.build` constructs a sampler with those of `labels` int64 [n], `size`, `per_class`, `seed` and `dim` that it
has parameters for, and with the recipe's `batch.args`. A sampler that chooses by embeddings has an array `memory`,
float32 [n, dim]. The training loop writes into it the embeddings of all samples at first, and those of a batch after
each step; it is part of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from training.construction import ClassTable

__all__ = [
    "DDM",
    "FRD",
    "SPC",
    "SPCR",
    "ClassWeighted",
    "GreedyCoreset",
    "MPerClassSampler",
]


class Sampler(Protocol):
    """Source of batches. They depend only on the arguments, the epoch and the memory, if there is one."""

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [size], of epoch `number`."""


SAMPLERS = ClassTable(
    __name__,
    {
        "spc": "spc:SPC",
        "spc-r": "spc_r:SPCR",
        "m-per-class": "spc:SPC",  # the same draw, as Musgrave et al. 2020, A Metric Learning Reality Check, name it
        "class-weighted": "class_weighted:ClassWeighted",
        "greedy-coreset": "greedy_coreset:GreedyCoreset",
        "ddm": "distribution_matching:DDM",
        "frd": "distribution_matching:FRD",
    },
)
__getattr__ = SAMPLERS.class_named
