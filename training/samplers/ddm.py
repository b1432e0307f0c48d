"""DDM: matching the distribution of distances (Roth et al. 2020, Revisiting, section 4.2)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from training.samplers.matching import Matching

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


DDM = partial(Matching, wasserstein)
