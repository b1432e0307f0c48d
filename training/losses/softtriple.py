"""SoftTriple loss (Qian et al. 2019, SoftTriple Loss: Deep Metric Learning Without Triplet Sampling)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, margin_cross_entropy


class SoftTriple(nn.Module):
    """Cross entropy of scale * (S_y - delta) against scale * S_j, plus tau times how far a class's centres spread.

    S_c = sum_k softmax_k(phi.w_ck / gamma) phi.w_ck, over the `centres` unit vectors w_ck of class c. The spread is
    the sum over a class's pairs s < t of sqrt(2 - 2 w_s.w_t), over classes * centres * (centres - 1). Constants of
    Roth et al. 2020, Revisiting, appendix A. (The code published with it takes the softmax over classes, multiplies
    by gamma and normalises the centres along the wrong axis: not copied.)
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        centres: int = 2,
        delta: float = 0.01,
        gamma: float = 0.1,
        scale: float = 8.0,
        tau: float = 0.2,
    ) -> None:
        super().__init__()
        self.delta, self.gamma, self.scale, self.tau = delta, gamma, scale, tau
        # The first axis counts a class's centres, so that the softmax over them runs along rows in memory.
        self.centres = nn.Parameter(class_vectors(centres, classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, self.centres.shape[1])
        centres = normalize(self.centres, dim=2)
        single = embeddings / self.gamma @ centres.transpose(1, 2)
        logits = self.scale * self.gamma * (single.softmax(0) * single).sum(0)
        loss = margin_cross_entropy(logits, labels, -self.scale * self.delta)
        return loss + self.tau * centre_spread(centres) if self.tau else loss


def centre_spread(centres: Tensor) -> Tensor:
    """Sum of the distances between the centres of a class, each pair once, over classes k (k - 1), [k, classes, d]."""
    k, classes, _ = centres.shape
    s, t = torch.triu_indices(k, k, 1, device=centres.device)
    # |w_s - w_t| = sqrt(2 - 2 w_s.w_t) for unit vectors, with gradient 0 where they coincide.
    return torch.linalg.vector_norm(centres[s] - centres[t], dim=2).sum() / max(1, classes * k * (k - 1))
