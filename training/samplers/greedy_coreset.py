"""Greedy coresets (Sener & Savarese 2018, A Core-Set Approach; Roth et al. 2020, Revisiting, section 3.2).

x_{i+1} = argmax_x min_{j <= i} |x - x_j|
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from training.samplers.base import EmbeddingSampler, Labels
from zoo.errors import RecipeError


class GreedyCoreset(EmbeddingSampler):
    """Batches that cover a random pool: each next sample is the one farthest from all chosen before.

    The paper chooses all of the batch by distance and does not mention classes. Here, so that a batch has positives,
    one sample of each class of the batch is chosen from the pool; random classmates join it. `memory` has the current
    embeddings of all samples; the training loop writes them.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        embedding_size: Dimension of the embeddings.
        seed: Seed of the draws.
        pool: Samples in the pool, at least 1.

    Raises:
        RecipeError: If the classes cannot fill a batch, or the pool is empty.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        samples_per_class: int,
        embedding_size: int,
        seed: int = 0,
        *,
        pool: int = 512,
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, embedding_size, seed, pool)
        if pool < 1:
            raise RecipeError(f"the sampler got pool {pool}; it needs at least 1 sample.", code="invalid-value")

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""
        draw = self.draw(number)
        for _ in range(batches):
            pool = self._pool(draw)
            coreset = pool[farthest_first(self.memory[pool], self.classes.class_of[pool], self.classes_per_batch)]
            yield np.column_stack([coreset, self.classes.classmates(coreset, self.samples_per_class - 1, draw)]).ravel()

    def _pool(self, draw: np.random.Generator) -> np.ndarray:
        """Return random samples, and if their classes are too few, one sample of each other class."""
        pool = self.draw_pool(draw)
        present = np.bincount(self.classes.class_of[pool], minlength=len(self.classes)) > 0
        if present.sum() >= self.classes_per_batch:
            return pool
        return np.concatenate([pool, self.classes.samples(np.flatnonzero(~present), 1, draw).ravel()])


def farthest_first(embeddings: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Return row 0 and then, repeatedly, the row of a new class that is farthest from its nearest chosen row.

    Args:
        embeddings: float32 [p, d].
        classes: int [p] with at least `count` different ones.
        count: Rows to choose.

    Returns:
        The rows, int64 [count].
    """
    rows = torch.from_numpy(embeddings)
    distances = torch.cdist(rows, rows).numpy()
    selection, nearest = np.zeros(count, np.int64), np.full(len(embeddings), np.inf, np.float32)
    for i in range(count - 1):
        nearest = np.minimum(nearest, distances[selection[i]])
        nearest[classes == classes[selection[i]]] = -np.inf
        selection[i + 1] = nearest.argmax()
    return selection
