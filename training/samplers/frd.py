"""FRD: matching by Frechet distance (Roth et al. 2020, Revisiting, section 4.2)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from training.samplers.matching import Matching


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


FRD = partial(Matching, frechet)
