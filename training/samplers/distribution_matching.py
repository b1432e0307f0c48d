"""DDM and FRD.

The batch that represents the data best among a few random ones (Roth et al. 2020, Revisiting, section 4.2).

DDM: matching the distribution of distances (Roth et al. 2020, Revisiting, section 4.2).

FRD: matching by Frechet distance (Roth et al. 2020, Revisiting, section 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from training.samplers.classes import ClassIndex
from zoo.errors import RecipeError

Mismatch = Callable[[Tensor, Tensor], Tensor]


class DistributionMatching:
    """Of `candidates` batches drawn as SPC draws them, the one whose embeddings lie most like those of a random pool.

    mismatch: (embeddings of the pool [p, d], of the candidates [c, b, d]) -> [c], the lower the more alike.
    `memory`, float32 [n, dim], has the current embeddings of all samples; the loop writes them there.
    """

    def __init__(
        self,
        mismatch: Mismatch,
        labels: np.ndarray,
        size: int,
        per_class: int,
        seed: int,
        dim: int,
        pool: int = 512,
        candidates: int = 10,
    ) -> None:
        self.mismatch, self.classes = mismatch, ClassIndex(labels)
        self.classes_per_batch = self.classes.classes_per_batch(size, per_class)
        if pool < 2 or candidates < 1:
            raise RecipeError(
                f"matching needs a pool of 2 or more and 1 or more candidates, not {pool} and {candidates}."
            )
        self.per_class, self.seed, self.pool, self.candidates = per_class, seed, min(pool, len(labels)), candidates
        self.memory = np.zeros((len(labels), dim), np.float32)

    def epoch(self, number: int, batches: int) -> Iterator[np.ndarray]:
        """`batches` index arrays, int64 [size], of epoch `number`."""
        draw = np.random.default_rng((self.seed, number))
        for _ in range(batches):
            pool = draw.choice(len(self.classes.class_of), self.pool, replace=False)
            candidates = self._candidates(draw)
            mismatch = self.mismatch(torch.from_numpy(self.memory[pool]), torch.from_numpy(self.memory[candidates]))
            yield candidates[int(mismatch.argmin())]

    def _candidates(self, draw: np.random.Generator) -> np.ndarray:
        """int64 [candidates, size]"""
        classes = [
            draw.choice(len(self.classes), self.classes_per_batch, replace=False) for _ in range(self.candidates)
        ]
        return self.classes.samples(np.stack(classes), self.per_class, draw).reshape(self.candidates, -1)


BINS = 200


def wasserstein(pool: Tensor, batches: Tensor) -> Tensor:
    """Wasserstein distances [c] between histograms of pairwise distances: of pool [p, d] and of each batch [c, b, d].

    Rows have unit length; the histograms have 200 bins over 0..2.
    """
    return (_cumulative(batches) - _cumulative(pool[None])).abs().sum(1) * (2 / BINS)


def _cumulative(batches: Tensor) -> Tensor:
    """[c, 200]: the share of the distances within each batch [c, b, d] that lie in each bin or below."""
    c, b, _ = batches.shape
    distances = (2 - 2 * batches @ batches.mT).clamp(0, 4).sqrt()
    bins = (distances * (BINS / 2)).long().clamp(max=BINS - 1) + BINS * torch.arange(c)[:, None, None]
    counts = torch.bincount(bins.flatten(), minlength=BINS * c).view(c, BINS)
    counts[:, 0] -= b  # the distances of samples to themselves
    return counts.cumsum(1) / (b * (b - 1))


DDM = partial(DistributionMatching, wasserstein)


def frechet(pool: Tensor, batches: Tensor) -> Tensor:
    """Squared Frechet distances [c] between Gaussians: fitted to pool [p, d], and to each batch [c, b, d].

    |m - m_b|^2 + tr(S + S_b - 2 (S S_b)^1/2) (Dowson & Landau 1982), m means, S covariances.
    """
    mean, centred = _centred(pool)
    means, centreds = _centred(batches)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    root = vectors * values.clamp(min=0).sqrt()  # S = root root', so that S S_b has the eigenvalues of root' S_b root
    rooted = centreds @ root
    # Both products have the same eigenvalues other than zero: the smaller one is taken.
    small = rooted @ rooted.mT if rooted.shape[1] < rooted.shape[2] else rooted.mT @ rooted
    cross = torch.linalg.eigvalsh(small).clamp(min=0).sqrt().sum(1)
    spread = centred.square().sum() + centreds.square().sum((1, 2))
    return (means - mean).square().sum(1) + spread - 2 * cross


def _centred(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Means [..., d] of rows [..., n, d], and rows whose scatter matrix [..., d, d] is the covariance of these."""
    mean = rows.mean(-2)
    return mean, (rows - mean[..., None, :]) / max(1, rows.shape[-2] - 1) ** 0.5


FRD = partial(DistributionMatching, frechet)
