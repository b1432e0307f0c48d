"""Angular loss with N-pair loss (Wang et al. 2017, Deep Metric Learning with Angular Loss).

    L = L_npair(psi) + weight * mean_(a,p) log(1 + sum_n exp(f_apn)) + nu * mean |psi|^2
    f_apn = 4 tan^2(alpha) (phi_a + phi_p).phi_n - 2 (1 + tan^2(alpha)) phi_a.phi_p

psi are raw embeddings and phi = psi / |psi|.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import Triplets, check_batch, mean_norm
from training.losses.n_pair import NPairs, choose_pairs, join_triplets, log_one_plus, n_pair_loss


class AngularLoss(nn.Module):
    """Angular loss on unit embeddings plus N-pair loss on raw embeddings, with a penalty on their length.

    The defaults are those of Roth et al. 2020, Revisiting, appendix A.

    Args:
        classes: Number of training classes; not used.
        alpha: Angle in degrees.
        weight: Weight of the angular term.
        nu: Weight of the penalty on the length.
        all_samples: Choice of the pairs, as in `NPairsLoss`.
        squared_norm: Form of the penalty, as in `NPairsLoss`.
    """

    normalised = False
    several_negatives = True
    """As in `NPairsLoss`."""

    def __init__(
        self,
        classes: int,
        alpha: float = 45.0,
        weight: float = 2.0,
        nu: float = 0.005,
        all_samples: bool = True,
        squared_norm: bool = True,
    ) -> None:
        super().__init__()
        self.tan2 = math.tan(math.radians(alpha)) ** 2
        self.weight, self.nu, self.all_samples, self.squared_norm = weight, nu, all_samples, squared_norm

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Triplets | None = None) -> Tensor:
        """Return the loss, a scalar, of raw (not normalised) embeddings [b, d] with labels int64 [b].

        Triplets, if there are any, choose the anchors, their positives and their negatives.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        pairs = choose_pairs(labels, self.all_samples) if tuples is None else join_triplets(tuples, len(labels))
        loss = n_pair_loss(embeddings, pairs) + self.weight * self._angular(normalize(embeddings, dim=1), pairs)
        return loss + self.nu * mean_norm(embeddings, self.squared_norm)

    def _angular(self, phi: Tensor, pairs: NPairs) -> Tensor:
        anchors, positives = phi[pairs.anchors], phi[pairs.positives]
        pushed = 4 * self.tan2 * (anchors + positives) @ phi[pairs.candidates].T
        pulled = 2 * (1 + self.tan2) * (anchors * positives).sum(1, keepdim=True)
        return log_one_plus(pushed - pulled, pairs.negative)
