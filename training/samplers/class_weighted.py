"""Classes drawn by their size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.classes import ClassIndex


class ClassWeighted:
    """Batches as SPC's, whose classes are drawn with weight n^power, n their number of samples.

    power 1: about equally often for each sample; 0: for each class, as SPC; below 0: small classes more often.
    """

    def __init__(self, labels: np.ndarray, size: int, per_class: int, seed: int, power: float = 1.0) -> None:
        self.classes = ClassIndex(labels)
        self.classes_per_batch = self.classes.classes_per_batch(size, per_class)
        self.per_class, self.seed = per_class, seed
        weights = self.classes.sizes.astype(np.float64) ** power
        self.weights = weights / weights.sum()

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """`batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            chosen = draw.choice(len(self.classes), self.classes_per_batch, replace=False, p=self.weights)
            yield self.classes.samples(chosen, self.per_class, draw).ravel()
