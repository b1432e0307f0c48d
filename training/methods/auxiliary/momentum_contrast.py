"""Each sample told apart from all others, by its augmentation (Milbich, Roth et al. 2020, DiVA)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.losses.dance import DaNCE
from training.methods.auxiliary.task import Auxiliary
from training.methods.method import Observe
from training.minibatch import Minibatch
from training.momentum import Momentum
from zoo.errors import RecipeError


class MomentumContrast(Auxiliary):
    """DaNCE of the head's embeddings, their keys and a queue of earlier keys; plain NCE where not `weighted`.

    Keys are embeddings of another augmentation by slow copies of trunk and head. The queue [queue_batches *
    batch_size, dim] holds the latest of them and starts with keys of random training samples. Constants of the
    paper's supplement: momentum 0.9, temperature 0.01, 30 batches (Stanford Online Products: 70). temperature,
    weighted and published as for the loss.
    """

    queue: Tensor
    pointer: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        head: nn.Linear,
        classes: int,
        batch_size: int,
        seed: int,
        queue_batches: int = 30,
        momentum: float = 0.9,
        temperature: float = 0.01,
        weighted: bool = True,
        published: bool = False,
    ) -> None:
        super().__init__()
        if queue_batches < 1:
            raise RecipeError(f"queue_batches must be 1 or more, not {queue_batches!r}.")
        self.contrast = DaNCE(classes, temperature, weighted=weighted, published=published)
        self.trunk, self.head, self.seed = Momentum(trunk, momentum), Momentum(head, momentum), seed
        self.register_buffer("queue", torch.zeros(queue_batches * batch_size, head.out_features))
        self.register_buffer("pointer", torch.tensor(0))
        self._keys: Tensor | None = None

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        with torch.no_grad():
            self._keys = self._embed(batch.features_of(batch.another_view(), self.trunk.average))
        return self.contrast.of_keys(normalize(raw, dim=1), self._keys, self.queue)

    def start_epoch(self, epoch: int, observe: Observe) -> None:
        self.trunk.copy_buffers()  # of which several processes agree once an epoch
        if epoch == 0:
            features = observe()
            rows = _permutations(len(features), len(self.queue), self.seed).to(features.device)
            self.queue.copy_(self._embed(features[rows]))

    def end_step(self, batch: Minibatch) -> None:
        self.trunk.update()
        self.head.update()
        if self._keys is not None:
            self._enqueue(self._keys)
            self._keys = None

    @torch.no_grad()
    def _embed(self, features: Tensor) -> Tensor:
        return normalize(self.head.average(features), dim=1)

    def _enqueue(self, keys: Tensor) -> None:
        """The oldest keys give way to the new ones [b, dim]."""
        keys = keys[-len(self.queue) :]
        places = torch.arange(len(keys), device=keys.device)
        self.queue[(self.pointer + places) % len(self.queue)] = keys
        self.pointer.add_(len(keys)).remainder_(len(self.queue))


def _permutations(n: int, count: int, seed: int) -> Tensor:
    """int64 [count]: 0 to n - 1 in random order, and again where that is not enough."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(-(-count // n))])[:count]
