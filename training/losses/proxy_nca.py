"""ProxyNCA (Movshovitz-Attias et al. 2017, No Fuss Distance Metric Learning using Proxies).

    L = -mean log(exp(-|s phi - s p_y|^2) / sum_{z != y} exp(-|s phi - s p_z|^2))

phi is a unit embedding, y its class, p_z the unit proxy of class z, and s the scale.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from training.functional import check_batch
from training.losses.proxies import class_vectors, shift_target_logits, target_cosines
from zoo.errors import RecipeError


class ProxyNCALoss(nn.Module):
    """Neighbourhood component analysis with one learnt proxy per class.

    Args:
        classes: Number of training classes, at least 2.
        dim: Dimension of the embeddings.
        scale: s; 3 in Roth et al. 2020, Revisiting, appendix A. Its proxies learn at 5e-4.
        positive_in_denominator: Let the sum include z = y, as in pytorch-metric-learning and thus in Musgrave et al.
            2020, Reality Check, whose scale is s^2.
        start: Distribution of the first proxies, see `class_vectors`.

    Raises:
        RecipeError: If there are fewer than two classes.
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        scale: float = 3.0,
        positive_in_denominator: bool = False,
        start: str = "eighth",
    ) -> None:
        super().__init__()
        if classes < 2:
            raise RecipeError(
                f"the loss 'proxynca' compares classes: it needs at least 2, not {classes}.", code="too-few-classes"
            )
        self.scale, self.positive_in_denominator = scale, positive_in_denominator
        self.proxies = nn.Parameter(class_vectors(classes, dim, start=start))

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, len(self.proxies))
        # -|s phi - s p|^2 = 2 s^2 phi.p - 2 s^2 for unit vectors; the constant cancels.
        scaled, proxies = 2 * self.scale**2 * embeddings, normalize(self.proxies, dim=1)
        logits = scaled @ proxies.T
        if self.positive_in_denominator:
            return cross_entropy(logits, labels)
        non_targets = shift_target_logits(logits, labels, -torch.inf).logsumexp(1)
        return (non_targets - target_cosines(scaled, proxies, labels)).mean()
