"""Groups of training samples by k-means, and the triplets across classes of Sharing Matters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from training.functional import Pairs, Triplets
from training.methods.base import ExtractFeatures, Miner, Minibatch
from training.methods.clustering import cluster, standardise
from training.miners import create_miner
from training.miners.base import mine_unit_rows
from zoo.errors import RecipeError


class Grouping(nn.Module):
    """Group of each training sample, renewed before every epoch that `every` divides.

    Groups are clusters of the pooled features (Roth, Brattoli and Ommer 2019, MIC, section 3.1).

    Args:
        labels: Classes of the training samples, int64 [n].
        number: Number of groups.
        every: Epochs from one clustering to the next.
        seed: Seed of k-means.
        standardised: Standardise the features by class first. This removes the differences between classes, so that a
            group has samples of many classes that are similar in other respects.

    Raises:
        RecipeError: If a number is out of range.
    """

    groups: Tensor
    classes: Tensor

    def __init__(self, labels: np.ndarray, number: int, every: int, seed: int, standardised: bool = True) -> None:
        super().__init__()
        if not 2 <= number <= len(labels):
            raise RecipeError(
                f"groups is {number}; it must be from 2 to {len(labels)}, the training samples.", code="invalid-value"
            )
        if every < 1:
            raise RecipeError(f"cluster_every is {every} epochs; it must be 1 or more.", code="invalid-value")
        self.number, self.every, self.seed, self.standardised = number, every, seed, standardised
        self.register_buffer("groups", torch.arange(len(labels)) % number)
        self.register_buffer("classes", torch.tensor(labels), persistent=False)

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        """Cluster the features again if `every` divides the epoch."""
        if epoch % self.every:
            return
        features = extract_features()
        if self.standardised:
            features = standardise(features, self.classes)
        self.groups.copy_(cluster(features, self.number, self.seed + epoch))

    def facts(self) -> dict[str, float]:
        """Return `classes_per_group`, the mean number of different classes in a group (Sharing, figure 4)."""
        pairs = torch.stack([self.groups, self.classes.to(self.groups)]).unique(dim=1)
        return {"classes_per_group": pairs.shape[1] / self.number}

    def targets(self) -> np.ndarray:
        """Return the groups of all training samples, int64 [n]."""
        return self.groups.cpu().numpy()


UNGROUPED = ("inter-class", "nearest", "unconstrained")
GROUPED = ("grouped", "grouped-standardised")
NEGATIVES = ("distance-weighted", "semihard", "random", "all")


class SharedTriplets(nn.Module):
    """Triplets from which an encoder learns features that classes share (Sharing Matters, tables 7 and 8).

    - inter-class: anchor, positive and negative of three different classes, which are random in each batch
    - nearest: the same, but the positive is the nearest sample of another class
    - unconstrained: any three samples; the positive is random
    - grouped, grouped-standardised: ordinary triplets of groups of samples, which are clusters of their features, or of
      these standardised by class; batches are drawn by group

    Args:
        setup: One of these names.
        negatives: Distance-weighted, semihard, random, or all: every sample of the batch that is of neither the
            anchor's nor the positive's class, for losses of several negatives.
        labels: Classes of the training samples, int64 [n].
        groups: Number of groups.
        cluster_every: Epochs from one clustering to the next.
        seed: Seed of k-means.
        positives: Positives of inter-class triplets: distance-weighted or random. By default they are drawn like the
            negatives, with semihard ones at random, and with all of them by distance.

    Raises:
        RecipeError: If a name is unknown, or has no effect, or there are too few classes or samples.
    """

    def __init__(
        self,
        setup: str,
        negatives: str,
        labels: np.ndarray,
        groups: int,
        cluster_every: int,
        seed: int,
        positives: str | None = None,
    ) -> None:
        super().__init__()
        if setup not in (*UNGROUPED, *GROUPED):
            raise RecipeError(
                f"triplets is {setup!r}; choose one of {', '.join((*UNGROUPED, *GROUPED))}.", code="unknown-name"
            )
        if positives is not None and setup != "inter-class":
            raise RecipeError(
                f"positives is {positives!r}, but triplets {setup!r} draw their positives in one way; leave it out.",
                code="option-without-effect",
            )
        if negatives not in NEGATIVES:
            raise RecipeError(f"negatives is {negatives!r}; choose one of {', '.join(NEGATIVES)}.", code="unknown-name")
        classes = len(np.unique(labels))
        if setup in ("inter-class", "nearest") and classes < 3:
            raise RecipeError(
                f"triplets {setup!r} need three training classes, and there are {classes}.", code="too-few-classes"
            )
        self.setup, self.grouping, self.all_negatives = setup, None, negatives == "all"
        drawn = "random" if self.all_negatives else negatives
        if setup in GROUPED:
            self.grouping = Grouping(labels, groups, cluster_every, seed, setup == "grouped-standardised")
            self.base_miner: Miner = create_miner(drawn, {})
        else:
            by_distance = "distance-weighted" if negatives in ("distance-weighted", "all") else "random"
            positive = {"nearest": "nearest", "unconstrained": "random"}.get(setup, positives or by_distance)
            self.base_miner = create_miner("inter-class", {"positive": positive, "negative": drawn})

    def miner(self, batch: Minibatch) -> Miner:
        """Return the miner of a batch; it uses the set-up's labels instead of those that it is called with."""
        labels = self._labels(batch)

        def mine(unit: Tensor, _: Tensor) -> Triplets | Pairs:
            tuples: Triplets | Pairs = mine_unit_rows(self.base_miner, unit, labels)
            if self.all_negatives and isinstance(tuples, Triplets):
                return _with_all_negatives(tuples, labels)
            return tuples

        return mine

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels int64 [n] by which batches are drawn: the classes `labels`, or the groups."""
        return labels if self.grouping is None else self.grouping.targets()

    def start_epoch(self, epoch: int, extract_features: ExtractFeatures) -> None:
        """Renew the groups if the set-up has some."""
        if self.grouping is not None:
            self.grouping.start_epoch(epoch, extract_features)

    def _labels(self, batch: Minibatch) -> Tensor:
        if self.grouping is not None:
            return self.grouping.groups[batch.samples]
        return batch.samples if self.setup == "unconstrained" else batch.labels


def _with_all_negatives(triplets: Triplets, labels: Tensor) -> Triplets:
    """Return each anchor and positive once with every sample of a third label as its negative."""
    anchors, positives = triplets.anchors, triplets.positives
    third = (labels != labels[anchors][:, None]) & (labels != labels[positives][:, None])
    rows, negatives = third.nonzero(as_tuple=True)
    return Triplets(anchors[rows], positives[rows], negatives)
