"""DDM and FRD: the best of a few random batches (Roth et al. 2020, Revisiting, section 3.2).

DDM compares distributions of pairwise distances, FRD Gaussians by their Frechet distance:

    DDM: Wasserstein distance of the histograms of |e_i - e_j| in the pool and in a candidate batch
    FRD: |m - m_b|^2 + tr(S + S_b - 2 (S S_b)^1/2), means m and covariances S of the embeddings
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from training.samplers.base import EmbeddingSampler, Labels
from zoo.errors import RecipeError


class DistributionMatching(EmbeddingSampler):
    """Batches chosen among `candidates` SPC batches: the one whose embeddings are most similar to a random pool's.

    `memory` has the current embeddings of all samples; the training loop writes them. The paper draws the candidates
    from the pool. Here they are drawn from all samples, because a random pool of SOP has too few
    pairs of one class.

    Args:
        labels: Classes of the samples, whole numbers [n].
        batch_size: Samples per batch.
        samples_per_class: Samples of each class.
        embedding_size: Dimension of the embeddings.
        seed: Seed of the draws.
        pool: Samples in the pool, at least 2.
        candidates: Batches to choose from, at least 1.

    Raises:
        RecipeError: If the classes cannot fill a batch, or the pool or the candidates are out of range.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        samples_per_class: int,
        embedding_size: int,
        seed: int = 0,
        *,
        pool: int = 512,
        candidates: int = 10,
    ) -> None:
        super().__init__(labels, batch_size, samples_per_class, embedding_size, seed, pool)
        if pool < 2 or candidates < 1:
            raise RecipeError(
                f"the sampler got pool {pool} and candidates {candidates}; it needs a pool of at least 2 samples and "
                "at least 1 candidate.",
                code="invalid-value",
            )
        self.candidates = candidates

    @abstractmethod
    def mismatch(self, pool: Tensor, batches: Tensor) -> Tensor:
        """Return a number for each candidate, [c], lower for more similar ones.

        Args:
            pool: Embeddings of the pool [p, d].
            batches: Those of the candidates [c, b, d].
        """

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """Yield `batches` index arrays, int64 [batch_size], of epoch `number`."""
        draw = self.draw(number)
        for _ in range(batches):
            pool = self.draw_pool(draw)
            candidates = self._candidates(draw)
            mismatch = self.mismatch(torch.from_numpy(self.memory[pool]), torch.from_numpy(self.memory[candidates]))
            yield candidates[int(mismatch.argmin())]

    def _candidates(self, draw: np.random.Generator) -> np.ndarray:
        """Return the candidate batches, int64 [candidates, batch_size]."""
        classes = [
            draw.choice(len(self.classes), self.classes_per_batch, replace=False) for _ in range(self.candidates)
        ]
        return self.classes.samples(np.stack(classes), self.samples_per_class, draw).reshape(self.candidates, -1)


BINS = 200


def wasserstein(pool: Tensor, batches: Tensor) -> Tensor:
    """Return the Wasserstein distances between histograms of pairwise distances.

    Args:
        pool: Unit rows [p, d].
        batches: Unit rows [c, b, d].

    Returns:
        The distances [c] between the pool and each batch; the histograms have 200 bins on [0, 2].
    """
    return (_cumulative(batches) - _cumulative(pool[None])).abs().sum(1) * (2 / BINS)


def _cumulative(batches: Tensor) -> Tensor:
    """Return the cumulative histogram, [c, 200], of the distances within each batch [c, b, d], as shares."""
    c, b, _ = batches.shape
    distances = (2 - 2 * batches @ batches.mT).clamp(0, 4).sqrt()
    bins = (distances * (BINS / 2)).long().clamp(max=BINS - 1) + BINS * torch.arange(c)[:, None, None]
    counts = torch.bincount(bins.flatten(), minlength=BINS * c).view(c, BINS)
    counts[:, 0] -= b  # the distances of samples to themselves
    return counts.cumsum(1) / (b * (b - 1))


class DDM(DistributionMatching):
    """Batches whose pairwise distances are distributed most like a random pool's; see `DistributionMatching`."""

    def mismatch(self, pool: Tensor, batches: Tensor) -> Tensor:
        """Return the Wasserstein distances between histograms of pairwise distances, [c]."""
        return wasserstein(pool, batches)


def frechet(pool: Tensor, batches: Tensor) -> Tensor:
    """Return the squared Frechet distances between Gaussians fitted to the rows (Dowson & Landau 1982).

    Args:
        pool: Rows [p, d].
        batches: Rows [c, b, d].

    Returns:
        The distances [c] between the pool and each batch.
    """
    mean, centred = _centred(pool)
    means, centreds = _centred(batches)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    # S = root root', so that S S_b has the eigenvalues of root' S_b root.
    root = vectors * values.clamp(min=0).sqrt()
    rooted = centreds @ root
    # Both products have the same eigenvalues other than zero; the smaller one is cheaper.
    small = rooted @ rooted.mT if rooted.shape[1] < rooted.shape[2] else rooted.mT @ rooted
    cross = torch.linalg.eigvalsh(small).clamp(min=0).sqrt().sum(1)
    spread = centred.square().sum() + centreds.square().sum((1, 2))
    return (means - mean).square().sum(1) + spread - 2 * cross


def _centred(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means [..., d] of rows [..., n, d], and rows whose scatter matrix [..., d, d] is the covariance of
    these.
    """
    mean = rows.mean(-2)
    return mean, (rows - mean[..., None, :]) / max(1, rows.shape[-2] - 1) ** 0.5


class FRD(DistributionMatching):
    """Batches whose mean and covariance are most like a random pool's; see `DistributionMatching`."""

    def mismatch(self, pool: Tensor, batches: Tensor) -> Tensor:
        """Return the squared Frechet distances between Gaussians fitted to the embeddings, [c]."""
        return frechet(pool, batches)
