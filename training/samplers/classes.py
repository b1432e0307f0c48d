"""The samples of each class, and random draws from them for many classes at once."""

from __future__ import annotations

import numpy as np

from zoo.errors import RecipeError


class ClassIndex:
    """of: int64 [n], the class of each sample, 0 to c - 1; sizes: int64 [c], how many samples each class has."""

    def __init__(self, labels: np.ndarray) -> None:
        _, self.class_of, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        self.members = np.argsort(self.class_of, kind="stable")
        self.starts = self.sizes.cumsum() - self.sizes
        self.places = np.empty_like(self.members)  # of each sample among those of its class
        self.places[self.members] = np.arange(len(self.members)) - self.starts[self.class_of[self.members]]

    def __len__(self) -> int:
        return len(self.sizes)

    def classes_per_batch(self, size: int, per_class: int) -> int:
        """The classes that a batch of `size` with `per_class` samples of each has. Raises `RecipeError`."""
        if min(size, per_class) < 1 or size % per_class:
            raise RecipeError(f"batch.size ({size}) must be a multiple of batch.per_class ({per_class}).")
        if size // per_class > len(self):
            raise RecipeError(
                f"a batch of {size} with {per_class} a class needs {size // per_class} classes; the training classes "
                f"are {len(self)}. Lower batch.size or raise batch.per_class."
            )
        if self.sizes.max() < per_class:  # smaller ones beside it repeat some of theirs
            raise RecipeError(
                f"batch.per_class is {per_class}, and no training class has so many samples; the largest has "
                f"{self.sizes.max()}. Lower batch.per_class."
            )
        return size // per_class

    def samples(self, classes: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
        """`count` samples of each of these classes, [..., count]: different ones of classes that have enough."""
        return self.members[self.starts[classes][..., None] + _draw_numbers(self.sizes[classes], count, draw)]

    def classmates(self, samples: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
        """`count` others of the class of each sample, [..., count]; the sample itself where it is alone."""
        sizes, places = self.sizes[self.class_of[samples]], self.places[samples]
        numbers = _draw_numbers(np.maximum(sizes - 1, 1), count, draw)
        numbers += (numbers >= places[..., None]) & (sizes > 1)[..., None]
        return self.members[self.starts[self.class_of[samples]][..., None] + numbers]


def _draw_numbers(below: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """`count` random numbers from 0 to below - 1 for each of `below`, [..., count]; different ones if there are enough.

    Floyd's algorithm (Bentley & Floyd 1987, A sample of brilliance), whose order is then made random too.
    """
    enough = below >= count
    numbers = np.empty((*below.shape, count), np.int64)
    for i in range(count):
        last = np.where(enough, below - count + i, below - 1)
        number = draw.integers(0, last, endpoint=True)
        taken = enough & (numbers[..., :i] == number[..., None]).any(-1)
        numbers[..., i] = np.where(taken, last, number)
    return draw.permuted(numbers, axis=-1)
