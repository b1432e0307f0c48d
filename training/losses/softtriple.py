"""SoftTriple loss (Qian et al. 2019, SoftTriple Loss: Deep Metric Learning Without Triplet Sampling).

    L = -mean log(exp(scale (S_y - delta)) / (exp(scale (S_y - delta)) + sum_{j != y} exp(scale S_j))) + tau * spread
    S_c = sum_k softmax_k(phi.w_ck / gamma) phi.w_ck
    spread = sum_c sum_{s < t} sqrt(2 - 2 w_cs.w_ct) / (classes * centres * (centres - 1))

w_ck are the unit centres of class c; y is the class of the unit embedding phi.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, shift_target_logits


class SoftTripleLoss(nn.Module):
    """Cross entropy of relaxed similarities with several centres per class, and a penalty on the centres' distances.

    The defaults are those of Roth et al. 2020, Revisiting, appendix A. The code published with it takes the softmax
    over classes, multiplies by gamma and normalises the centres along the wrong axis; this is not copied.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        centres: Centres per class.
        delta: margin.
        gamma: Temperature of the softmax over a class's centres.
        scale: Factor of the similarities.
        tau: Weight of the penalty.
        start: Distribution of the first class vectors, see `class_vectors`.
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
        start: str = "uniform",
    ) -> None:
        super().__init__()
        self.delta, self.gamma, self.scale, self.tau = delta, gamma, scale, tau
        # The first axis counts a class's centres, so that the softmax over them runs along rows in memory.
        self.centres = nn.Parameter(class_vectors(centres, classes, dim, start=start))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, self.centres.shape[1])
        centres = normalize(self.centres, dim=2)
        loss = cross_entropy(self._shifted_logits(embeddings, centres, labels), labels)
        return loss + self.tau * _centre_spread(centres) if self.tau else loss

    def shifted_logits(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] with the margin, whose cross entropy is the first term of the loss."""
        return self._shifted_logits(embeddings, normalize(self.centres, dim=2), labels)

    def _shifted_logits(self, embeddings: Tensor, centres: Tensor, labels: Tensor) -> Tensor:
        cosines = embeddings / self.gamma @ centres.transpose(1, 2)
        logits = self.scale * self.gamma * (cosines.softmax(0) * cosines).sum(0)
        return shift_target_logits(logits, labels, -self.scale * self.delta)


def _centre_spread(centres: Tensor) -> Tensor:
    """Return the sum of the distances between the centres of a class, each pair once, over classes * k * (k - 1).

    Args:
        centres: Unit rows [k, classes, d].
    """
    k, classes, _ = centres.shape
    s, t = torch.triu_indices(k, k, 1, device=centres.device)
    # |w_s - w_t| = sqrt(2 - 2 w_s.w_t) for unit vectors, with gradient 0 where they coincide.
    return torch.linalg.vector_norm(centres[s] - centres[t], dim=2).sum() / max(1, classes * k * (k - 1))
