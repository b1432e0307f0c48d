"""Samples in an order whose batches have m of each class (Musgrave et al. 2020, A Metric Learning Reality Check)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Sampler

from training.samplers.base import Labels
from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError


class MPerClassSampler(Sampler[int]):
    """Source of samples, m of a class at a time: `DataLoader(dataset, 32, sampler=MPerClassSampler(labels, 4))`.

    Classes come in random order, each once before any comes again; samples of a class are different if it has enough.
    With a batch size, the classes are drawn again for each batch. The seed of an iteration comes from torch's global
    generator.

    Args:
        labels: Classes of the samples, whole numbers [n].
        m: Samples of each class.
        batch_size: Samples per batch of the loader, a multiple of m; None: any.
        length_before_new_iter: Samples of an iteration, cut to whole batches, or else to whole passes over the classes.

    Raises:
        RecipeError: If m does not divide the batch size, or the batch has more classes than there are.
    """

    def __init__(
        self, labels: Labels, m: int, batch_size: int | None = None, length_before_new_iter: int = 100_000
    ) -> None:
        self.classes, self.m, self.batch_size = ClassIndex(np.asarray(labels)), m, batch_size
        size = m * len(self.classes) if batch_size is None else batch_size
        if m < 1 or size < 1 or size % m or size > m * len(self.classes):
            raise RecipeError(
                f"batch_size ({batch_size}) must be a multiple of m ({m}), and at most m times the number of classes "
                f"({len(self.classes)}).",
                code="conflicting-settings",
            )
        self.classes_per_draw = size // m
        self.draws = max(1, length_before_new_iter // size)

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng(int(torch.randint(2**62, ())))
        for _ in range(self.draws):
            classes = draw.permutation(len(self.classes))[: self.classes_per_draw]
            yield from self.classes.samples(classes, self.m, draw).ravel().tolist()

    def __len__(self) -> int:
        return self.draws * self.classes_per_draw * self.m
