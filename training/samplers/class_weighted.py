"""Classes drawn by their size.

P(c) ~ n_c^power,  n_c: number of samples of class c
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.classes import ClassIndex


class ClassWeighted:
    """Batches of `size` samples, `per_class` of each class; classes are drawn without replacement with weight n^power.

    Args:
        labels: int64 [n].
        size: Samples per batch.
        per_class: Samples of each class.
        seed: Seed of the draws.
        power: 1 draws each sample about equally often, 0 each class (as SPC), below 0 prefers small classes.

    Raises:
        RecipeError: If the classes cannot fill a batch.
    """

    def __init__(self, labels: np.ndarray, size: int, per_class: int, seed: int, power: float = 1.0) -> None:
        self.classes = ClassIndex(labels)
        self.classes_per_batch = self.classes.classes_per_batch(size, per_class)
        self.per_class, self.seed = per_class, seed
        weights = self.classes.sizes.astype(np.float64) ** power
        self.weights = weights / weights.sum()

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            batch_classes = draw.choice(len(self.classes), self.classes_per_batch, replace=False, p=self.weights)
            yield self.classes.samples(batch_classes, self.per_class, draw).ravel()
