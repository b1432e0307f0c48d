"""SPC-R: random batches with one certain positive pair (Roth et al. 2020, Revisiting, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError


class SPCR:
    """Batches of `size` different samples drawn evenly from all; the last one shares its label with another.

    Args:
        labels: int64 [n].
        size: Samples per batch, from 2 to n.
        seed: Seed of the draws.

    Raises:
        RecipeError: If the size is out of range, or no class has two samples.
    """

    def __init__(self, labels: np.ndarray, size: int, seed: int) -> None:
        self.classes, self.size, self.seed = ClassIndex(labels), size, seed
        self.paired = np.flatnonzero(self.classes.sizes[self.classes.class_of] > 1)
        if not 2 <= size <= len(labels):
            raise RecipeError(
                f"batch.size is {size}; the sampler 'spc-r' draws from 2 to {len(labels)}, all training samples.",
                code="invalid-value",
            )
        if len(self.paired) == 0:
            raise RecipeError(
                f"none of the {len(self.classes)} training classes has two samples, and the sampler 'spc-r' needs a "
                "positive pair in each batch.",
                code="too-few-samples",
            )

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            first = draw.choice(self.paired, 1)
            last = self.classes.classmates(first, 1, draw)[0]
            rest = draw.choice(len(self.classes.class_of), self.size, replace=False)
            rest = rest[(rest != first) & (rest != last)]
            yield np.concatenate([first, rest[: self.size - 2], last])
