"""SPC-k: k samples per class (Roth et al. 2020, Revisiting, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from training.samplers.base import BatchSampler, Labels
from zoo.errors import RecipeError


class SPC(BatchSampler):
    """Batches of batch_size / samples_per_class different classes, with that many samples of each.

    Samples of a class are drawn without replacement if it has enough.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        seed: Seed of the draws.
        together: Draw classes in groups of this many neighbouring labels, such as the quarter turns of one character
            (data.turns 4), which are each other's hardest negatives.

    Raises:
        RecipeError: If the classes cannot fill a batch, or the groups do not fit.
    """

    def __init__(
        self, labels: Labels, batch_size: int, samples_per_class: int, seed: int = 0, *, together: int = 1
    ) -> None:
        super().__init__(labels, batch_size, seed)
        classes = self.classes
        if min(batch_size, samples_per_class, together) < 1 or batch_size % (samples_per_class * together):
            raise RecipeError(
                f"batch.size ({batch_size}) must be a multiple of batch.per_class x together ({samples_per_class} x "
                f"{together}).",
                code="conflicting-settings",
            )
        if len(classes) % together:
            raise RecipeError(
                f"together ({together}) must divide the number of training classes ({len(classes)}).",
                code="conflicting-settings",
            )
        classes_per_batch = classes.classes_per_batch(batch_size, samples_per_class)
        self.members = np.split(classes.members, classes.starts[1:])
        self.groups = np.arange(len(classes)).reshape(-1, together)
        self.groups_per_batch, self.samples_per_class = classes_per_batch // together, samples_per_class

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""
        draw = self.draw(number)
        for _ in range(batches):
            batch_groups = self.groups[draw.choice(len(self.groups), self.groups_per_batch, replace=False)]
            yield np.concatenate([self._samples(self.members[c], draw) for c in batch_groups.ravel()])

    def _samples(self, members: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        return draw.choice(members, self.samples_per_class, replace=len(members) < self.samples_per_class)
