"""The batch that represents the data best among a few random ones (Roth et al. 2020, Revisiting, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from training.samplers.classes import Classes
from zoo.errors import RecipeError

Mismatch = Callable[[Tensor, Tensor], Tensor]


class Matching:
    """Of `candidates` batches drawn as SPC draws them, the one whose embeddings lie most like those of a random pool.

    mismatch: (embeddings of the pool [p, d], of the candidates [c, b, d]) -> [c], the lower the more alike.
    `memory`, float32 [n, dim], has the current embeddings of all samples; the loop writes them there.
    """

    def __init__(
        self,
        mismatch: Mismatch,
        labels: np.ndarray,
        size: int,
        per_class: int,
        seed: int,
        dim: int,
        pool: int = 512,
        candidates: int = 10,
    ) -> None:
        self.mismatch, self.classes = mismatch, Classes(labels)
        self.in_batch = self.classes.in_batch(size, per_class)
        if pool < 2 or candidates < 1:
            raise RecipeError(
                f"matching needs a pool of 2 or more and 1 or more candidates, not {pool} and {candidates}."
            )
        self.per_class, self.seed, self.pool, self.candidates = per_class, seed, min(pool, len(labels)), candidates
        self.memory = np.zeros((len(labels), dim), np.float32)

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """`batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            pool = draw.choice(len(self.classes.of), self.pool, replace=False)
            candidates = self._candidates(draw)
            mismatch = self.mismatch(torch.from_numpy(self.memory[pool]), torch.from_numpy(self.memory[candidates]))
            yield candidates[int(mismatch.argmin())]

    def _candidates(self, draw: np.random.Generator) -> np.ndarray:
        """int64 [candidates, size]"""
        classes = [draw.choice(len(self.classes), self.in_batch, replace=False) for _ in range(self.candidates)]
        return self.classes.samples(np.stack(classes), self.per_class, draw).reshape(self.candidates, -1)
