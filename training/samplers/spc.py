"""SPC-k: k samples per class (Roth et al. 2020, Revisiting, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError


class SPC:
    """Batches of `size` samples: size / per_class different classes, `per_class` samples of each.

    Samples of a class are drawn without replacement if it has enough. The draw depends only on the seed and the epoch,
    so that a resumed run sees the batches that it would have seen.

    Args:
        labels: int64 [n].
        size: Samples per batch.
        per_class: Samples of each class.
        seed: Seed of the draws.
        together: Draw classes in groups of this many neighbouring labels, such as the quarter turns of one character
            (data.turns 4), which are each other's hardest negatives.

    Raises:
        RecipeError: If the classes cannot fill a batch, or the groups do not fit.
    """

    def __init__(self, labels: np.ndarray, size: int, per_class: int, seed: int, together: int = 1) -> None:
        classes = ClassIndex(labels)
        if min(size, per_class, together) < 1 or size % (per_class * together):
            raise RecipeError(
                f"batch.size ({size}) must be a multiple of batch.per_class x together ({per_class} x {together}).",
                code="conflicting-settings",
            )
        if len(classes) % together:
            raise RecipeError(
                f"together ({together}) must divide the number of training classes ({len(classes)}).",
                code="conflicting-settings",
            )
        classes_per_batch = classes.classes_per_batch(size, per_class)
        self.members = np.split(classes.members, classes.starts[1:])
        self.groups = np.arange(len(classes)).reshape(-1, together)
        self.groups_per_batch, self.per_class, self.seed = classes_per_batch // together, per_class, seed

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            batch_groups = self.groups[draw.choice(len(self.groups), self.groups_per_batch, replace=False)]
            yield np.concatenate([self._samples(self.members[c], draw) for c in batch_groups.ravel()])

    def _samples(self, members: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return draw.choice(members, self.per_class, replace=len(members) < self.per_class)
