"""Pseudo-classes (Caron et al. 2018, Deep Clustering for Unsupervised Learning of Visual Features)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.clustering import k_means
from training.methods.auxiliary.task import Auxiliary
from training.methods.method import Observe
from training.minibatch import Minibatch
from zoo.errors import RecipeError


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

    def start_epoch(self, epoch: int, observe: Observe) -> None:
        if epoch % self.every == 0:
            self.pseudo_labels.copy_(k_means(observe(), self.clusters, self.seed + epoch))
            self.classifier.reset_parameters()
