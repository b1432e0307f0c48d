"""Generalised lifted structure loss (Hermans et al. 2017, In Defense of the Triplet Loss, section 2).

    L = mean_a [log sum_p exp(d_ap) + log sum_n exp(margin - d_an)]+ + nu * mean |psi|^2

d is the Euclidean distance of raw embeddings psi.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from training import functional
from training.functional import check_batch, distances, mean_norm, negative_mask, positive_mask


class GeneralizedLiftedStructureLoss(nn.Module):
    """Lifted structure loss over all pairs of a batch; anchors without a positive or without a negative are left out.

    Args:
        classes: Number of training classes; not used.
        margin: 1 in Roth et al. 2020, Revisiting, appendix A.
        nu: Weight of the penalty on the length; 0.005 in the same place.
        squared_norm: False penalises mean |psi|, as in the code published with Revisiting.
    """

    normalised = False

    def __init__(self, classes: int, margin: float = 1.0, nu: float = 0.005, squared_norm: bool = True) -> None:
        super().__init__()
        self.margin, self.nu, self.squared_norm = margin, nu, squared_norm

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of raw (not normalised) embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positive, negative = positive_mask(labels), negative_mask(labels)
        matrix = distances(embeddings)
        pulled = functional.masked_logsumexp(matrix, positive)
        pushed = functional.masked_logsumexp(self.margin - matrix, negative)
        lifted = functional.masked_mean(relu(pulled + pushed), positive.any(1) & negative.any(1))
        return lifted + self.nu * mean_norm(embeddings, self.squared_norm)
