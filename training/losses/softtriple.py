"""SoftTriple loss (Qian et al. 2019, SoftTriple Loss: Deep Metric Learning Without Triplet Sampling).

    L = -mean log(exp(la (S_y - margin)) / (exp(la (S_y - margin)) + sum_{j != y} exp(la S_j))) + tau * spread
    S_c = sum_k softmax_k(phi.w_ck / gamma) phi.w_ck
    spread = sum_c sum_{s < t} sqrt(2 - 2 w_cs.w_ct) / (classes * centres * (centres - 1))

w_ck are the unit centres of class c; y is the class of the unit embedding phi.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.batch import EmbeddingBatch
from training.losses.base import unit_vectors
from training.losses.proxies import ClassVectorLoss, class_vectors, shift_target_logits
from training.pml import ClassParts, Terms


class SoftTripleLoss(ClassVectorLoss):
    """Cross entropy of relaxed similarities with several centres per class, and a penalty on the centres' distances.

    Roth et al. 2020, Revisiting, appendix A, has 2 centres, la 8 and tau .2. The code published with it takes the
    softmax over classes, multiplies by gamma and normalises the centres along the wrong axis; this is not copied.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        centers_per_class: Centres per class.
        la: Factor of the similarities.
        gamma: Temperature of the softmax over a class's centres.
        margin: delta.
        tau: Weight of the penalty.
        start: Distribution of the first class vectors, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.
    """

    main_constant = "la"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        *,
        tau: float = 0.0,
        start: str = "kaiming",
        **parts: Unpack[ClassParts],
    ) -> None:
        super().__init__(num_classes, embedding_size, **parts)
        self.centers_per_class, self.tau, self.start = centers_per_class, tau, start
        self.la, self.gamma, self.margin = la, gamma, margin
        # The first axis counts a class's centres, so that the softmax over them runs along rows in memory.
        self.centres = self.vectors(class_vectors(centers_per_class, num_classes, embedding_size, start=start))

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, None]:
        """Return the terms [b], all of which count."""
        return cross_entropy(self.shifted_logits(batch.rows, batch.labels), batch.labels, reduction="none"), None

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name: the penalty on the centres, and those of regularizers."""
        penalties = super().penalties(batch, embeddings)
        if self.tau:
            spread = self.tau * _centre_spread(unit_vectors(self.centres, batch.rows))
            penalties["spread"] = Terms(spread, None, "already_reduced")
        return penalties

    def logits(self, rows: Tensor) -> Tensor:
        """Return the relaxed similarities [b, classes] of unit rows, without the margin."""
        cosines = rows / self.gamma @ unit_vectors(self.centres, rows).transpose(1, 2)
        return self.gamma * (cosines.softmax(0) * cosines).sum(0)

    def shifted_logits(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows with the margin, whose cross entropy is the loss without tau."""
        return shift_target_logits(self.la * self.logits(rows), labels, -self.la * self.margin)


def _centre_spread(centres: Tensor) -> Tensor:
    """Return the sum of the distances between the centres of a class, each pair once, over classes * k * (k - 1).

    Args:
        centres: Unit rows [k, classes, d].
    """
    k, classes, _ = centres.shape
    s, t = torch.triu_indices(k, k, 1, device=centres.device)
    # |w_s - w_t| = sqrt(2 - 2 w_s.w_t) for unit vectors, with gradient 0 where they coincide.
    return torch.linalg.vector_norm(centres[s] - centres[t], dim=2).sum() / max(1, classes * k * (k - 1))
