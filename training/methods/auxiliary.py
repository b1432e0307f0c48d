"""Auxiliary tasks of DiVA (Milbich, Roth et al. 2020, DiVA, section 3.1), by the name of the head that each trains.

- shared: features that classes share; intra: differences within a class
- dance, nce: each sample against all others by its augmentation, with and without weights
- deepcluster, rotation, instance: self-supervised tasks that the paper compares with dance (figure 4)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import Triplets
from training.losses.dance import DaNCELoss
from training.methods.base import ExtractFeatures, Miner, Minibatch, objective_loss, takes_tuples
from training.methods.clustering import Momentum, cluster
from training.miners.base import mine_unit_rows
from training.miners.distance_weighted import DistanceWeightedMiner
from training.miners.inter_class import InterClassMiner
from training.miners.intra_class import IntraClassMiner
from zoo.errors import RecipeError


class Auxiliary(nn.Module, ABC):
    """Base of the auxiliary tasks: the loss of one head, and all other learnt state of the task.

    All state is in parameters and buffers. The constructor receives those of these values that it names: head,
    nn.Linear f -> dim, and trunk, which are both live and must not be registered here; dim; create_loss(dim), an
    instance of the recipe's loss; classes and samples, their numbers; batch_size; seed.
    """

    @abstractmethod
    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return the loss, a scalar, of the head's embeddings [b, dim] of the batch, not normalised."""

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        """Prepare an epoch; called before its first step."""

    def end_step(self, batch: Minibatch) -> None:
        """Update state after a step."""


class DeepCluster(Auxiliary):
    """Cross entropy of a linear classifier that predicts the cluster of an image's features.

    Deep clustering (Caron et al. 2018, Deep Clustering for Unsupervised Learning of Visual Features). K-means clusters
    the features of all training samples; the classifier then starts again, because the order of the clusters changes.

    Args:
        dim: Dimension of the head.
        samples: Number of training samples.
        seed: Seed of k-means.
        clusters: 300 in DiVA.
        every: Epochs from one clustering to the next.

    Raises:
        RecipeError: If a number is out of range.
    """

    pseudo_labels: Tensor

    def __init__(self, dim: int, samples: int, seed: int, clusters: int = 300, every: int = 1) -> None:
        super().__init__()
        if not 1 <= clusters <= samples or every < 1:
            raise RecipeError(
                f"the task 'deepcluster' got clusters {clusters!r} and every {every!r}; it needs 1 to {samples} "
                "clusters (the training samples), and every 1 or more.",
                code="invalid-value",
            )
        self.clusters, self.every, self.seed = clusters, every, seed
        self.classifier = nn.Linear(dim, clusters)
        self.register_buffer("pseudo_labels", torch.zeros(samples, dtype=torch.int64))

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return the cross entropy of the clusters of the batch's samples."""
        return cross_entropy(self.classifier(raw), self.pseudo_labels[batch.samples])

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        if epoch % self.every == 0:
            self.pseudo_labels.copy_(cluster(extract_features(), self.clusters, self.seed + epoch))
            self.classifier.reset_parameters()


class InstanceDiscrimination(Auxiliary):
    """Cross entropy in which every training sample is a class.

        L = -mean_i log(exp(v_i . f_i / T) / sum_j exp(v_j . f_i / T)), over all training samples j

    Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination, eq. 2. f is the head's
    unit embedding. v is a bank with one unit vector per sample, random at first, that moves towards f after each step.
    The sum is complete instead of estimated: for some 10,000 samples it is one small product.

    Args:
        dim: Dimension of the head.
        samples: Number of training samples.
        seed: Seed of the bank.
        temperature: T; 0.07 in the paper.
        momentum: Share of v that remains after a step; 0.5 in the published code.

    Raises:
        RecipeError: If a number is out of range.
    """

    bank: Tensor

    def __init__(self, dim: int, samples: int, seed: int, temperature: float = 0.07, momentum: float = 0.5) -> None:
        super().__init__()
        if temperature <= 0 or not 0 <= momentum < 1:
            raise RecipeError(
                f"the task 'instance' got temperature {temperature} and momentum {momentum}; it needs a temperature "
                "above 0 and a momentum from 0 to below 1.",
                code="invalid-value",
            )
        self.temperature, self.momentum = temperature, momentum
        random = torch.randn(samples, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("bank", normalize(random, dim=1))
        self._embedded: Tensor | None = None

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return the cross entropy of the batch's samples."""
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
    """Return the different values of int64 [b], and the position where each occurs first."""
    different, inverse = values.unique(return_inverse=True)
    positions = torch.arange(len(values), device=values.device)
    first = torch.full_like(different, len(values)).scatter_reduce(0, inverse, positions, "amin")
    return different, first


class MomentumContrast(Auxiliary):
    """DaNCE of the head's embeddings with their keys against a queue of earlier keys (DiVA, section 3.2, eq. 6).

    Keys are embeddings of another augmentation by slow copies of trunk and head. The queue, [queue_batches *
    batch_size, dim], has the latest keys and starts with keys of random training samples. Positives are keys too,
    without a gradient, as in the published code and by the costs in section 3.2 (one more pass, by the slow copy);
    equation 6 prints the positive by the live network.

    Args:
        trunk: The trunk.
        head: The head.
        classes: Number of training classes.
        batch_size: Samples per batch.
        seed: Seed of the first keys.
        queue_batches: Batches in the queue; 30 in the published code, 70 on SOP.
        momentum: That of the slow copies; 0.9 in the published code.
        temperature: 0.01 in table 1.
        weighted: As in `DaNCELoss`; False: plain noise contrastive estimation.
        with_positive, published: As in `DaNCELoss`.

    Raises:
        RecipeError: If the queue is empty.
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
        with_positive: bool = False,
        published: bool = False,
    ) -> None:
        super().__init__()
        if queue_batches < 1:
            raise RecipeError(f"queue_batches is {queue_batches!r}; it must be 1 or more.", code="invalid-value")
        self.contrast = DaNCELoss(temperature, weighted=weighted, with_positive=with_positive, published=published)
        self.trunk, self.head, self.seed = Momentum(trunk, momentum), Momentum(head, momentum), seed
        self.register_buffer("queue", torch.zeros(queue_batches * batch_size, head.out_features))
        self.register_buffer("pointer", torch.tensor(0))
        self._keys: Tensor | None = None

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return DaNCE of the batch against the queue."""
        with torch.no_grad():
            self._keys = self._embed(batch.features_of(batch.another_view(), self.trunk.average))
        return self.contrast.contrast_keys(normalize(raw, dim=1), self._keys, self.queue)

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        self.trunk.copy_buffers()  # several processes agree on the trunk's buffers once per epoch
        if epoch == 0:
            features = extract_features()
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
        """Replace the oldest keys by new ones [b, dim]."""
        keys = keys[-len(self.queue) :]
        offsets = torch.arange(len(keys), device=keys.device)
        self.queue[(self.pointer + offsets) % len(self.queue)] = keys
        self.pointer.add_(len(keys)).remainder_(len(self.queue))


def _permutations(n: int, count: int, seed: int) -> Tensor:
    """Return 0 to n - 1 in random order, repeated with other orders until there are `count`; int64 [count]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(n, generator=generator) for _ in range(-(-count // n))])[:count]


class RotationPrediction(Auxiliary):
    """Cross entropy of a linear classifier that predicts by how many quarters an image was turned.

    Gidaris et al. 2018, Unsupervised Representation Learning by Predicting Image Rotations. The network sees every
    image in all four turns, so that a step takes four passes through the trunk. Images must be square.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._head = (head,)
        self.classifier = nn.Linear(head.out_features, 4)

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        # One pass per turn, so that the features of several processes are in the order of the turns.
        """Return the cross entropy of the four turns of each image."""
        turned = [self._head[0](batch.features_of(batch.images.rot90(turn, (2, 3)))) for turn in (1, 2, 3)]
        turns = torch.arange(4, device=raw.device).repeat_interleave(len(raw))
        return cross_entropy(self.classifier(torch.cat([raw, *turned])), turns)


CreateLoss = Callable[[int], nn.Module]


class SharedFeatures(Auxiliary):
    """The recipe's loss on triplets of three different classes (DiVA, section 3.1).

    Args:
        create_loss: Function of a dimension that returns the recipe's loss.
        dim: Dimension of the head.
        permuted_labels: Use the published code's triplets, mined by distance as if each batch's labels were permuted.

    Raises:
        RecipeError: If the loss does not accept triplets.
    """

    def __init__(self, create_loss: CreateLoss, dim: int, permuted_labels: bool = False) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "shared")
        self.miner: Miner = _permuted_label_triplets if permuted_labels else InterClassMiner()

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return the loss of the batch over triplets across classes."""
        return objective_loss(self.objective, self.miner, raw, batch.labels)


class IntraClassFeatures(Auxiliary):
    """The recipe's loss on triplets of three different samples of one class (DiVA, section 3.1).

    A sample that the batch repeats, as in small classes, takes part once.

    Args:
        create_loss: Function of a dimension that returns the recipe's loss.
        dim: Dimension of the head.
        by_distance: As in `IntraClassMiner`; the published code draws negatives evenly.

    Raises:
        RecipeError: If the loss does not accept triplets.
    """

    def __init__(self, create_loss: CreateLoss, dim: int, by_distance: bool = True) -> None:
        super().__init__()
        self.objective = _triplet_loss(create_loss, dim, "intra")
        self.miner: Miner = IntraClassMiner(by_distance)

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        """Return the loss of the batch over triplets within classes.

        Raises:
            RecipeError: If no class of the batch has three samples.
        """
        labels = _mark_repeats(batch.labels, batch.samples)
        return objective_loss(
            self.objective, lambda unit, _: mine_unit_rows(self.miner, unit, labels), raw, batch.labels
        )


def _triplet_loss(create_loss: CreateLoss, dim: int, task: str) -> nn.Module:
    """Return an instance of the recipe's loss; raise `RecipeError` if it does not accept triplets."""
    loss = create_loss(dim)
    if not takes_tuples(loss, Triplets):
        raise RecipeError(
            f"the task {task!r} trains the recipe's loss on triplets, and {type(loss).__name__} does not accept them; "
            "set objective.loss to a loss that does, such as margin or triplet, or omit that head.",
            code="conflicting-settings",
        )
    return loss


def _permuted_label_triplets(embeddings: Tensor, labels: Tensor) -> Triplets:
    """Return the published code's distance-weighted triplets by permuted labels: one per anchor, of any distance."""
    permuted = labels[torch.randperm(len(labels), device=labels.device)]
    miner = DistanceWeightedMiner(nonzero_loss_cutoff=None, one_positive=True)
    triplets: Triplets = mine_unit_rows(miner, embeddings, permuted)
    return triplets


def _mark_repeats(labels: Tensor, samples: Tensor) -> Tensor:
    """Return labels int64 [b] in which each repetition of a sample has a negative label of its own."""
    ordered, order = samples.sort(stable=True)
    repeated = torch.zeros_like(labels, dtype=torch.bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return torch.where(repeated, -1 - torch.arange(len(labels), device=labels.device), labels)


PlainContrast = partial(MomentumContrast, weighted=False)
"""Noise contrastive estimation: DaNCE without its weights."""
