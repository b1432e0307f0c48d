"""Auxiliary tasks of DiVA.

What an auxiliary task is to the methods that train several: a loss of its own head, and hooks.

Pseudo-classes (Caron et al. 2018, Deep Clustering for Unsupervised Learning of Visual Features).

Every image a class (Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination).

Each sample told apart from all others, by its augmentation (Milbich, Roth et al. 2020, DiVA).

Which way is up (Gidaris et al. 2018, Unsupervised Representation Learning by Predicting Image Rotations).

Two tasks that take the recipe's loss to other triplets (Milbich, Roth et al. 2020, DiVA).

Auxiliary tasks by the name of the head that they train, beside heads that learn the classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.clustering import Momentum, k_means
from training.functional import Triplets
from training.losses.dance import DaNCE
from training.methods.base import ExtractFeatures, Miner, Minibatch, objective_loss, takes_tuples
from training.miners.distance_weighted import DistanceWeighted
from training.miners.inter_class import InterClass
from training.miners.intra_class import IntraClass
from zoo.errors import RecipeError


class Auxiliary(nn.Module, ABC):
    """Owns what its task learns and keeps beside the head; all of it in parameters and buffers.

    Its constructor is given what it asks for by name: head, nn.Linear f -> dim, and trunk, both live and not to be
    registered here; dim; create_loss(dim), an instance of the recipe's loss; classes and samples, how many;
    batch_size; seed.
    """

    @abstractmethod
    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Scalar loss of the head's embeddings [b, dim] of the batch, not normalised."""

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        """Called before each epoch's first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Called after each step."""


class DeepCluster(Auxiliary):
    """Cross entropy of a linear classifier on the head that tells the cluster of an image's features.

    The features of all training samples are clustered by k-means before every `every`-th epoch, and the classifier
    starts afresh, for the clusters come in another order. 300 clusters: Milbich, Roth et al. 2020, DiVA.
    """

    pseudo_labels: Tensor

    def __init__(self, dim: int, samples: int, seed: int, clusters: int = 300, every: int = 1) -> None:
        super().__init__()
        if not 1 <= clusters <= samples or every < 1:
            raise RecipeError(
                f"deepcluster takes 1 to {samples} clusters, as many as there are training samples, and every 1 or "
                f"more; not clusters={clusters!r}, every={every!r}."
            )
        self.clusters, self.every, self.seed = clusters, every, seed
        self.classifier = nn.Linear(dim, clusters)
        self.register_buffer("pseudo_labels", torch.zeros(samples, dtype=torch.int64))

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        return cross_entropy(self.classifier(raw), self.pseudo_labels[batch.samples])

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        if epoch % self.every == 0:
            self.pseudo_labels.copy_(k_means(observe(), self.clusters, self.seed + epoch))
            self.classifier.reset_parameters()


class InstanceDiscrimination(Auxiliary):
    """-log(exp(v_i . f_i / T) / sum_j exp(v_j . f_i / T)) over all training samples j, eq. 2.

    f: the head's unit embedding; v: a bank of one unit vector a sample, random at first, that after each step moves to
    f by momentum. The sum is whole instead of estimated: at tens of thousands of samples that is one small product.
    Temperature T 0.07: the paper's; momentum 0.5: its published code's.
    """

    bank: Tensor

    def __init__(self, dim: int, samples: int, seed: int, temperature: float = 0.07, momentum: float = 0.5) -> None:
        super().__init__()
        if temperature <= 0 or not 0 <= momentum < 1:
            raise RecipeError("instance takes a temperature above 0 and a momentum from 0 to below 1.")
        self.temperature, self.momentum = temperature, momentum
        random = torch.randn(samples, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("bank", normalize(random, dim=1))
        self._embedded: Tensor | None = None

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        unit = normalize(raw, dim=1)
        self._embedded = unit.detach()
        return cross_entropy(unit @ self.bank.T / self.temperature, batch.samples)

    def end_step(self, batch: Minibatch) -> None:
        if self._embedded is None:
            return
        rows, first = _first_occurrences(batch.samples)
        moved = self.bank[rows].lerp(self._embedded[first], 1 - self.momentum)
        self.bank[rows] = normalize(moved, dim=1)
        self._embedded = None


def _first_occurrences(values: Tensor) -> tuple[Tensor, Tensor]:
    """The different values of int64 [b], and where each occurs first."""
    different, inverse = values.unique(return_inverse=True)
    places = torch.arange(len(values), device=values.device)
    first = torch.full_like(different, len(values)).scatter_reduce(0, inverse, places, "amin")
    return different, first


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

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
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


class RotationPrediction(Auxiliary):
    """Cross entropy of a linear classifier on the head that tells by how many quarters an image was turned.

    Every image is seen in all four turns, so that a step takes four passes through the trunk. Images are square.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._head = (head,)
        self.classifier = nn.Linear(head.out_features, 4)

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        # One pass a turn: the features of several processes come in the order of the turns then.
        turned = [self._head[0](batch.features_of(batch.images.rot90(turn, (2, 3)))) for turn in (1, 2, 3)]
        turns = torch.arange(4, device=raw.device).repeat_interleave(len(raw))
        return cross_entropy(self.classifier(torch.cat([raw, *turned])), turns)


CreateLoss = Callable[[int], nn.Module]


class SharedFeatures(Auxiliary):
    """What classes have in common: anchor, positive and negative of three different classes.

    permuted_labels: the published code's triplets, mined by distance as if each batch's labels were permuted.
    """

    def __init__(self, create_loss: CreateLoss, dim: int, permuted_labels: bool = False) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "shared")
        self.miner: Miner = _permuted_label_triplets if permuted_labels else InterClass()

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        return objective_loss(self.objective, self.miner, raw, batch.labels)


class IntraClassFeatures(Auxiliary):
    """What varies within a class: anchor, positive and negative are three different samples of one class.

    A sample that comes again in the batch, as of classes with too few of them, takes part once. Raises `RecipeError`
    for a batch in which no class has three.
    """

    def __init__(self, create_loss: CreateLoss, dim: int) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "intra")
        self.miner: Miner = IntraClass()

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        labels = _mark_repeats(batch.labels, batch.samples)
        return objective_loss(self.objective, lambda unit, _: self.miner(unit, labels), raw, batch.labels)


def _triplet_loss(create_loss: CreateLoss, dim: int, task: str) -> nn.Module:
    loss = create_loss(dim)
    if not takes_tuples(loss, Triplets):
        raise RecipeError(
            f"the task {task!r} trains the recipe's loss on triplets, and {type(loss).__name__} takes none; set "
            "objective.loss to one that does, as margin or triplet, or leave that head out."
        )
    return loss


def _permuted_label_triplets(embeddings: Tensor, labels: Tensor) -> Triplets:
    return DistanceWeighted()(embeddings, labels[torch.randperm(len(labels), device=labels.device)])


def _mark_repeats(labels: Tensor, samples: Tensor) -> Tensor:
    """labels int64 [b]; where a sample comes again, a label below 0 that nothing else has."""
    ordered, order = samples.sort(stable=True)
    again = torch.zeros_like(labels, dtype=torch.bool)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    return torch.where(again, -1 - torch.arange(len(labels), device=labels.device), labels)


AUXILIARY: dict[str, Callable[..., Auxiliary]] = {
    "shared": SharedFeatures,
    "intra": IntraClassFeatures,
    "dance": MomentumContrast,
    "nce": partial(MomentumContrast, weighted=False),
    "deepcluster": DeepCluster,
    "rotation": RotationPrediction,
    "instance": InstanceDiscrimination,
}
