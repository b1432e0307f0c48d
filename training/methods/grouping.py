"""K-means groups; shared triplets.

Groups of the training samples, found by k-means again and again: labels that need no annotation.

Triplets from which an encoder learns what classes share (Milbich, Roth et al. 2020, Sharing Matters).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from training.clustering import k_means, standardise
from training.methods.base import ExtractFeatures, Miner, Minibatch
from training.miners import create_miner
from zoo.errors import RecipeError


class Grouping(nn.Module):
    """The group, 0 to `number` - 1, of each training sample; renewed before every epoch that `every` divides.

    Groups are clusters of the pooled features. standardised: of features standardised by class, so that what tells the
    classes apart is gone and a group holds samples of many classes that look alike otherwise (Roth, Brattoli and Ommer
    2019, MIC, section 3.1). No group is ever empty. labels: the samples' classes, int64 [n].
    """

    groups: Tensor
    classes: Tensor

    def __init__(self, labels: np.ndarray, number: int, every: int, seed: int, standardised: bool = True) -> None:
        super().__init__()
        if not 2 <= number <= len(labels):
            raise RecipeError(f"groups must be from 2 to {len(labels)}, the training samples; {number} cannot be made.")
        if every < 1:
            raise RecipeError(f"cluster_every must be 1 epoch or more, not {every}.")
        self.number, self.every, self.seed, self.standardised = number, every, seed, standardised
        self.register_buffer("groups", torch.arange(len(labels)) % number)
        self.register_buffer("classes", torch.tensor(labels), persistent=False)

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        if epoch % self.every:
            return
        features = observe()
        if self.standardised:
            features = standardise(features, self.classes)
        self.groups.copy_(k_means(features, self.number, self.seed + epoch))

    def targets(self) -> np.ndarray:
        """The groups of all training samples, int64 [n]."""
        return self.groups.cpu().numpy()


POSITIVES = {"inter-class": "random", "nearest": "nearest", "unconstrained": "random"}
GROUPED = ("grouped", "grouped-standardised")
NEGATIVES = ("distance-weighted", "semihard", "random")


class SharedTriplets(nn.Module):
    """The set-ups of table 7 and the samplings of table 8.

    inter-class: anchor, positive and negative of three different classes; the positive is random.
    nearest: the same, but the positive is the nearest sample of another class.
    unconstrained: any three samples.
    grouped, grouped-standardised: ordinary triplets within and across groups of samples, which are clusters of their
    features, or of these standardised by class; batches are drawn by group then.
    negatives: distance-weighted, semihard or random.
    """

    def __init__(
        self, setup: str, negatives: str, labels: np.ndarray, groups: int, cluster_every: int, seed: int
    ) -> None:
        super().__init__()
        if setup not in (*POSITIVES, *GROUPED):
            raise RecipeError(f"triplets is one of {', '.join((*POSITIVES, *GROUPED))}, not {setup!r}.")
        if negatives not in NEGATIVES:
            raise RecipeError(f"negatives is one of {', '.join(NEGATIVES)}, not {negatives!r}.")
        classes = len(np.unique(labels))
        if setup in ("inter-class", "nearest") and classes < 3:
            raise RecipeError(f"triplets {setup!r} are of three classes; the training classes are {classes}.")
        self.setup, self.grouping = setup, None
        if setup in GROUPED:
            self.grouping = Grouping(labels, groups, cluster_every, seed, setup == "grouped-standardised")
            self.mine: Miner = create_miner(negatives, {})
        else:
            self.mine = create_miner("inter-class", {"positive": POSITIVES[setup], "negative": negatives})

    def miner(self, batch: Minibatch) -> Miner:
        """The miner of a batch; it goes by what the set-up takes for classes, whatever labels it is called with."""
        labels = self._labels(batch)
        return lambda unit, _: self.mine(unit, labels)

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """The labels int64 [n] by which batches are drawn: the classes `labels`, or the groups."""
        return labels if self.grouping is None else self.grouping.targets()

    def start_epoch(self, epoch: int, observe: ExtractFeatures) -> None:
        if self.grouping is not None:
            self.grouping.start_epoch(epoch, observe)

    def _labels(self, batch: Minibatch) -> Tensor:
        if self.grouping is not None:
            return self.grouping.groups[batch.samples]
        return batch.samples if self.setup == "unconstrained" else batch.labels
