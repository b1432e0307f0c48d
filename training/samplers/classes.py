"""Samples by class, and random draws from many classes at once."""

from __future__ import annotations

import numpy as np

from zoo.errors import RecipeError


class ClassIndex:
    """Index from classes, 0 to c - 1, to their samples.

    Attributes:
        class_of: Class of each sample, int64 [n].
        sizes: Number of samples of each class, int64 [c].
        members: Samples ordered by class, int64 [n]; class c begins at `starts[c]`.
        places: Position of each sample within its class, int64 [n].
    """

    def __init__(self, labels: np.ndarray) -> None:
        _, self.class_of, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self.members = np.argsort(self.class_of, kind="stable")
        self.starts = self.sizes.cumsum() - self.sizes
        self.places = np.empty_like(self.members)
        self.places[self.members] = np.arange(len(self.members)) - self.starts[self.class_of[self.members]]

    def __len__(self) -> int:
        return len(self.sizes)

    def classes_per_batch(self, size: int, per_class: int) -> int:
        """Return the number of classes in a batch of `size` samples, `per_class` of each class.

        Raises:
            RecipeError: If `size` is not a multiple of `per_class`, or the classes are too few or too small.
        """
        if min(size, per_class) < 1 or size % per_class:
            raise RecipeError(
                f"batch.size ({size}) must be a multiple of batch.per_class ({per_class}).", code="conflicting-settings"
            )
        if size // per_class > len(self):
            raise RecipeError(
                f"a batch of {size} with {per_class} samples per class needs {size // per_class} classes, and there "
                f"are {len(self)} training classes. Lower batch.size or raise batch.per_class.",
                code="too-few-classes",
            )
        if self.sizes.max() < per_class:  # smaller classes repeat samples
            raise RecipeError(
                f"batch.per_class is {per_class}, and the largest training class has {self.sizes.max()} samples. Lower "
                "batch.per_class.",
                code="too-few-samples",
            )
        return size // per_class

    def samples(self, classes: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
        """Return `count` samples of each class, [..., count]; all are different if the class has enough."""
        return self.members[self.starts[classes][..., None] + _draw_numbers(self.sizes[classes], count, draw)]

    def classmates(self, samples: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
        """Return `count` other samples of the class of each sample, [..., count]; the sample itself if its class has no
        other.
        """
        sizes, places = self.sizes[self.class_of[samples]], self.places[samples]
        numbers = _draw_numbers(np.maximum(sizes - 1, 1), count, draw)
        numbers += (numbers >= places[..., None]) & (sizes > 1)[..., None]
        return self.members[self.starts[self.class_of[samples]][..., None] + numbers]


def _draw_numbers(below: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """Return `count` random numbers from 0 to below - 1 for each of `below`, [..., count]; different ones if there are
    enough.

    Floyd's algorithm (Bentley & Floyd 1987, A sample of brilliance); the order of the numbers is then shuffled.
    """
    enough = below >= count
    numbers = np.empty((*below.shape, count), np.int64)
    for i in range(count):
        last = np.where(enough, below - count + i, below - 1)
        number = draw.integers(0, last, endpoint=True)
        taken = enough & (numbers[..., :i] == number[..., None]).any(-1)
        numbers[..., i] = np.where(taken, last, number)
    return draw.permuted(numbers, axis=-1)
