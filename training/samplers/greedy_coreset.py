"""Greedy coresets (Sener & Savarese 2018, A Core-Set Approach; Roth et al. 2020, Revisiting, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError


class GreedyCoreset:
    """Batches that cover a random pool: each sample chosen is the one farthest from those chosen before it.

    size / per_class samples of as many classes are chosen from `pool` samples, and per_class - 1 random classmates of
    each join them. `memory`, float32 [n, dim], has the current embeddings of all samples; the loop writes them there.
    """

    def __init__(self, labels: np.ndarray, size: int, per_class: int, seed: int, dim: int, pool: int = 512) -> None:
        self.classes = ClassIndex(labels)
        self.classes_per_batch = self.classes.classes_per_batch(size, per_class)
        if pool < 1:
            raise RecipeError(f"the pool has at least 1 sample, not {pool}.")
        self.per_class, self.seed, self.pool = per_class, seed, min(pool, len(labels))
        self.memory = np.zeros((len(labels), dim), np.float32)

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """`batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            pool = self._pool(draw)
            chosen = pool[farthest_first(self.memory[pool], self.classes.class_of[pool], self.classes_per_batch)]
            yield np.column_stack([chosen, self.classes.classmates(chosen, self.per_class - 1, draw)]).ravel()

    def _pool(self, draw: np.random.Generator) -> np.ndarray:
        """Random samples; where they are of too few classes, one of each further class joins them."""
        pool = draw.choice(len(self.classes.class_of), self.pool, replace=False)
        present = np.bincount(self.classes.class_of[pool], minlength=len(self.classes)) > 0
        if present.sum() >= self.classes_per_batch:
            return pool
        return np.concatenate([pool, self.classes.samples(np.flatnonzero(~present), 1, draw).ravel()])


def farthest_first(embeddings: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: row 0, then again and again the row that is farthest from its nearest chosen row, of a new class.

    embeddings [p, d], classes int [p] with at least `count` different ones.
    """
    rows = torch.from_numpy(embeddings)
    distances = torch.cdist(rows, rows).numpy()
    chosen, nearest = np.zeros(count, np.int64), np.full(len(embeddings), np.inf, np.float32)
    for i in range(count - 1):
        nearest = np.minimum(nearest, distances[chosen[i]])
        nearest[classes == classes[chosen[i]]] = -np.inf
        chosen[i + 1] = nearest.argmax()
    return chosen
