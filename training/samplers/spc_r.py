"""SPC-R: random batches with one certain positive pair (Roth et al. 2020, Revisiting, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.base import BatchSampler, Labels
from zoo.errors import RecipeError


class SPCR(BatchSampler):
    """Batches of different samples drawn evenly from all; the last one shares its label with another.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch, from 2 to n.
        seed: Seed of the draws.

    Raises:
        RecipeError: If the size is out of range, or no class has two samples.
    """

    def __init__(self, labels: Labels, batch_size: int, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed)
        self.paired = np.flatnonzero(self.classes.sizes[self.classes.class_of] > 1)
        if not 2 <= batch_size <= len(labels):
            raise RecipeError(
                f"batch.size is {batch_size}; the sampler 'spc-r' draws from 2 to {len(labels)}, all training samples.",
                code="invalid-value",
            )
        if len(self.paired) == 0:
            raise RecipeError(
                f"none of the {len(self.classes)} training classes has two samples, and the sampler 'spc-r' needs a "
                "positive pair in each batch.",
                code="too-few-samples",
            )

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""
        draw = self.draw(number)
        for _ in range(batches):
            first = draw.choice(self.paired, 1)
            last = self.classes.classmates(first, 1, draw)[0]
            rest = draw.choice(len(self.classes.class_of), self.batch_size, replace=False)
            rest = rest[(rest != first) & (rest != last)]
            yield np.concatenate([first, rest[: self.batch_size - 2], last])
