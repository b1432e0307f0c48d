"""K-means in torch, standardisation of features by class, and a momentum copy of a network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from zoo.errors import RecipeError


def k_means(points: Tensor, k: int, seed: int, iterations: int = 100, chunk: int = 8192) -> Tensor:
    """Cluster points by Lloyd's algorithm from a k-means++ start (Arthur and Vassilvitskii 2007).

    The same seed gives the same labels. Beside one copy of the points, memory is O(n + chunk x k).

    Args:
        points: float [n, d].
        k: The number of clusters, from 1 to n.
        seed: The seed of the start.
        iterations: The most iterations; it ends earlier when no label changes.
        chunk: Points per matrix product.

    Returns:
        Labels int64 [n], 0 to k - 1; every cluster has a member.

    Raises:
        RecipeError: If k is out of range.
    """
    if not 1 <= k <= len(points):
        raise RecipeError(
            f"{len(points)} samples cannot be split into {k} groups; choose from 1 to {len(points)}.",
            code="invalid-value",
        )
    points = points - points.mean(0)  # distances from products are exact only near the origin
    centres = points[seed_centres(points, k, seed)]
    labels = fill_empty_clusters(*assign_nearest(points, centres, chunk), k)
    for _ in range(iterations - 1):
        last = labels
        labels = fill_empty_clusters(*assign_nearest(points, cluster_means(points, last, k, chunk), chunk), k)
        if torch.equal(labels, last):
            break
    return labels


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


def seed_centres(points: Tensor, k: int, seed: int) -> Tensor:
    """Draw the k-means++ start: int64 [k], rows of points [n, d], by the squared distance to the nearest row so far."""
    generator = torch.Generator().manual_seed(seed)
    lengths = points.square().sum(1)
    centre_rows = [int(torch.randint(len(points), (), generator=generator))]
    nearest = torch.full_like(lengths, torch.inf)
    for _ in range(k - 1):
        new = points[centre_rows[-1]]
        nearest = nearest.minimum((lengths - 2 * points @ new + new.square().sum()).clamp(min=0))
        nearest[centre_rows[-1]] = 0
        # drawn on the CPU, so that every device draws the same
        ends = nearest.double().cpu().cumsum(0)
        at = torch.rand((), generator=generator, dtype=torch.float64) * ends[-1]
        centre_rows.append(min(int(torch.searchsorted(ends, at, right=True)), len(points) - 1))
    return torch.tensor(centre_rows, device=points.device)


def assign_nearest(points: Tensor, centres: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the nearest of centres [k, d] for each of points [n, d]: labels int64 [n] and squared distances [n]."""
    sizes = centres.square().sum(1)
    # |x|^2 is the same for all centres
    nearest = [(sizes - 2 * part @ centres.T).min(1) for part in points.split(chunk)]
    offsets = torch.cat([part.values for part in nearest])
    return torch.cat([part.indices for part in nearest]), offsets + points.square().sum(1)


def fill_empty_clusters(labels: Tensor, distances: Tensor, k: int) -> Tensor:
    """Give each empty cluster the farthest point that is not alone in its cluster; change the labels IN PLACE."""
    sizes = labels.bincount(minlength=k)
    for empty in (sizes == 0).nonzero().flatten():
        farthest = distances.masked_fill(sizes[labels] < 2, -torch.inf).argmax()
        sizes[labels[farthest]] -= 1
        sizes[empty] = 1
        labels[farthest] = empty
    return labels


def cluster_means(points: Tensor, labels: Tensor, k: int, chunk: int) -> Tensor:
    """Return the mean of the points of each label, by matrix products, whose order of summation never changes.

    Args:
        points: The points, [n, d].
        labels: The cluster of each point, int64 [n], from 0 to k - 1.
        k: The number of clusters.
        chunk: The number of points that are summed at a time.

    Returns:
        The means, [k, d].
    """
    sums = points.new_zeros(k, points.shape[1])
    for part, own in zip(points.split(chunk), labels.split(chunk), strict=True):
        sums += one_hot(own, k).to(points.dtype).T @ part
    return sums / labels.bincount(minlength=k)[:, None]


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
