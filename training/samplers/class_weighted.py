"""Classes drawn by their size.

P(c) ~ n_c^power,  n_c: number of samples of class c
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.base import ClassSampler, Labels


class ClassWeighted(ClassSampler):
    """Batches of some samples of each class; classes are drawn without replacement with weight n^power.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        seed: Seed of the draws.
        power: 1 draws each sample about equally often, 0 each class (as SPC), below 0 prefers small classes.

    Raises:
        RecipeError: If the classes cannot fill a batch.
    """

    def __init__(
        self, labels: Labels, batch_size: int, samples_per_class: int, seed: int = 0, *, power: float = 1.0
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, seed)
        self.power = power
        weights = self.classes.sizes.astype(np.float64) ** power
        self.weights = weights / weights.sum()

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""
        draw = self.draw(number)
        for _ in range(batches):
            batch_classes = draw.choice(len(self.classes), self.classes_per_batch, replace=False, p=self.weights)
            yield self.classes.samples(batch_classes, self.samples_per_class, draw).ravel()
