"""Base of the samplers, which are batch samplers of PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError

Labels = np.ndarray | torch.Tensor | Sequence[int]


class BatchSampler(Sampler[list[int]]):
    """Source of batches: `DataLoader(dataset, batch_sampler=SPC(labels, batch_size=32, samples_per_class=4))`.

    The batches of an epoch depend only on the arguments, the epoch and the memory, if there is one, so that a resumed
    run sees those that it would have seen. Each iteration is the next epoch, of as many batches as the samples fill.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        seed: Seed of the draws.

    Attributes:
        next_epoch: The number of the epoch that the next iteration draws.
        memory: Of a sampler that chooses by embeddings, those of all samples, float32 [n, d]; write the current ones.
    """

    def __init__(self, labels: Labels, batch_size: int, seed: int) -> None:
        self.classes, self.batch_size, self.seed, self.next_epoch = ClassIndex(np.asarray(labels)), batch_size, seed, 0

    @abstractmethod
    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""

    def __iter__(self) -> Iterator[list[int]]:
        number = self.next_epoch
        self.next_epoch += 1
        for batch in self.epoch(number, len(self)):
            yield batch.tolist()

    def __len__(self) -> int:
        return max(1, len(self.classes.class_of) // self.batch_size)

    def draw(self, number: int) -> np.random.Generator:
        """Return the random generator of an epoch."""
        return np.random.default_rng((self.seed, number))


class ClassSampler(BatchSampler):
    """Source of batches of `samples_per_class` samples of each of their classes.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        seed: Seed of the draws.

    Raises:
        RecipeError: If the classes cannot fill a batch.
    """

    def __init__(self, labels: Labels, batch_size: int, samples_per_class: int, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed)
        self.samples_per_class = samples_per_class
        self.classes_per_batch = self.classes.classes_per_batch(batch_size, samples_per_class)


class EmbeddingSampler(ClassSampler):
    """Source of batches that are chosen by the embeddings in `memory`, among a random pool of samples.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        embedding_size: Dimension of the embeddings.
        seed: Seed of the draws.
        pool: Samples in the pool.

    Raises:
        RecipeError: If the classes cannot fill a batch.
    """

    def __init__(
        self, labels: Labels, batch_size: int, samples_per_class: int, embedding_size: int, seed: int, pool: int
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, seed)
        self.pool = min(pool, len(labels))
        self.memory = np.zeros((len(labels), embedding_size), np.float32)

    def draw_pool(self, draw: np.random.Generator) -> np.ndarray:
        """Return the random pool, int64 [pool]."""
        return draw.choice(len(self.classes.class_of), self.pool, replace=False)


class OtherSampler(BatchSampler):
    """Source of the batches that a sampler of the user or of another library yields, in its own order.

    Args:
        sampler: An iterable of batches, or of single indices; it begins again whenever it ends. Its method
            `set_epoch(number)`, if there is one, is called before each epoch.
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch, of a sampler of single indices.
    """

    def __init__(self, sampler: Iterable[Any], labels: Labels, batch_size: int) -> None:
        super().__init__(labels, batch_size, 0)
        self.sampler = sampler

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(number)
        yield from islice(self._batches(), batches)

    def _batches(self) -> Iterator[np.ndarray]:
        pending: list[int] = []
        while True:
            empty = True
            for item in self.sampler:
                empty = False
                if np.ndim(item):
                    yield np.asarray(item, np.int64)
                    continue
                pending.append(int(item))
                if len(pending) == self.batch_size:
                    yield np.array(pending, np.int64)
                    pending = []
            if empty:
                raise RecipeError(f"the sampler {type(self.sampler).__name__} yields no batch.", code="invalid-value")
