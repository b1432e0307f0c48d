"""Groups of the training samples, found by k-means again and again: labels that need no annotation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from training.clustering import k_means, standardise
from training.methods.method import Observe
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

    def start_epoch(self, epoch: int, observe: Observe) -> None:
        if epoch % self.every:
            return
        features = observe()
        if self.standardised:
            features = standardise(features, self.classes)
        self.groups.copy_(k_means(features, self.number, self.seed + epoch))

    def targets(self) -> np.ndarray:
        """The groups of all training samples, int64 [n]."""
        return self.groups.cpu().numpy()
