"""Class assignments refined by replicator dynamics (Elezi et al. 2020, The Group Loss for Deep Metric Learning)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, relu

LEAST_SUPPORT = 1e-12


def correlations(features: Tensor) -> Tensor:
    """Pearson's correlation of rows [b, f] as [b, b] (eq. 1). That of a constant row, which has none, counts as 0."""
    centred = features - features.mean(1, keepdim=True)
    # What is left of a constant row is rounding, which must not be blown up to unit length.
    rounding = 16 * torch.finfo(features.dtype).eps * torch.linalg.vector_norm(features.detach(), dim=1)
    constant = torch.linalg.vector_norm(centred.detach(), dim=1) <= rounding
    # Not masked_fill, which would hide what is not a number.
    unit = normalize(centred, dim=1) * (~constant)[:, None]
    return unit @ unit.T


def similarities(features: Tensor, negative: str = "clamp", zero_diagonal: bool = True) -> Tensor:
    """W [b, b] >= 0 of features [b, f]: correlations, the negative ones set to 0, or all shifted up by the lowest.

    negative: "clamp", or "shift" (both: appendix G).
    """
    similar = correlations(features)
    similar = relu(similar) if negative == "clamp" else similar - similar.amin().clamp(max=0)
    if not zero_diagonal:
        return similar
    return similar * (1 - torch.eye(len(similar), dtype=similar.dtype, device=similar.device))


def refine(priors: Tensor, similarities: Tensor, steps: int) -> Tensor:
    """`steps` times X <- rows of X * (W X), each divided by its sum (eq. 4); X [b, c] from `priors`, W [b, b].

    Support (W X)_ic counts as at least 1e-12. So a row without any, which would be 0 / 0, keeps its assignment.
    """
    # The logarithm of 0 has an infinite gradient, which times 0 would be no number.
    logs = priors.clamp(min=torch.finfo(priors.dtype).tiny).log().masked_fill(priors == 0, -torch.inf)
    return refine_logs(logs, similarities, steps).exp()


def refine_logs(log_priors: Tensor, similarities: Tensor, steps: int) -> Tensor:
    """As `refine`, from logarithms [b, c] to logarithms: no product underflows, and gradients stay of one size."""
    assignments = log_priors
    for _ in range(steps):
        support = (similarities @ assignments.exp()).clamp(min=LEAST_SUPPORT)
        assignments = (assignments + support.log()).log_softmax(1)
    return assignments


def consistency(assignments: Tensor, similarities: Tensor) -> Tensor:
    """sum_ij w_ij x_i . x_j, a scalar, of X [b, c] and W [b, b].

    No step of `refine` lowers it where W is symmetric and not negative (Baum & Eagon 1967).
    """
    return (similarities * (assignments @ assignments.T)).sum()
