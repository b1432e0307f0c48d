"""Clusters of features, standardisation of features by class, and a momentum copy of a network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from zoo.errors import RecipeError
from zoo.evaluation.clustering import k_means


def cluster(features: Tensor, k: int, seed: int) -> Tensor:
    """Return the cluster of each row of features, float [n, f], as int64 [n], 0 to k - 1, by FAISS's k-means.

    On one machine a seed gives the same clusters: FAISS works on the CPU, since sums on a GPU have no order. Equal rows
    may leave clusters empty.
    """
    rows = (features - features.mean(0)).float().cpu().numpy()  # distances from products are exact near the origin
    return torch.from_numpy(k_means(rows, k, seed, restarts=1, iterations=100, gpu=False)).to(features.device)


def standardise(features: Tensor, labels: Tensor) -> Tensor:
    """Return (f - mu_c) / sigma_c for each feature and class c (Roth, Brattoli and Ommer 2019, MIC, section 3.1).

    Args:
        features: float [n, f].
        labels: int64 [n].

    Returns:
        float [n, f]. Sigma is the population standard deviation; where it is 0, as in classes of one sample, so is the
        result.
    """
    result = torch.zeros_like(features)
    for members in labels.argsort(stable=True).split(labels.unique(return_counts=True)[1].tolist()):
        own = features[members].double()
        mean, sigma = own.mean(0), own.std(0, correction=0)
        # equal numbers may have a mean that differs from them in the last bit
        varies = sigma > 1e-12 * mean.abs()
        result[members] = torch.where(varies, (own - mean) / sigma, 0).to(features.dtype)
    return result


class Momentum(nn.Module):
    """A slow copy of a network (He et al. 2020, Momentum Contrast), `average`: average <- m average + (1 - m) live.

    It gets no gradient and stays in evaluation mode, so that its output for an image depends on no other image of the
    batch. Buffers are copied: running statistics are averages already. The live network is not registered here.
    """

    def __init__(self, live: nn.Module, momentum: float) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise RecipeError(f"momentum must be from 0 to below 1, not {momentum!r}.", code="invalid-value")
        self.momentum, self._live = momentum, (live,)
        self.average = copy.deepcopy(live).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Momentum:
        """Stay in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def update(self) -> None:
        """Move one step toward the live network."""
        for slow, live in zip(self.average.parameters(), self._live[0].parameters(), strict=True):
            slow.lerp_(live, 1 - self.momentum)
        self.copy_buffers()

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the live network's buffers, such as running statistics."""
        for slow, live in zip(self.average.buffers(), self._live[0].buffers(), strict=True):
            slow.copy_(live)
