"""How far a student's similarities are from a teacher's (Roth et al. 2021, S2SD: Simultaneous Similarity-based
Self-Distillation for Deep Metric Learning)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import kl_div, normalize


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean over i of T^2 KL(softmax_j(t_ij / T) || softmax_j(s_ij / T)), a scalar; s, t: cosines of rows [b, any].

    No gradient reaches the teacher.
    """
    shares, targets = (_log_shares(rows, temperature) for rows in (student, teacher.detach()))
    return temperature**2 * kl_div(shares, targets, reduction="batchmean", log_target=True)


def _log_shares(rows: Tensor, temperature: float) -> Tensor:
    unit = normalize(rows, dim=1)
    return (unit @ unit.T / temperature).log_softmax(1)
