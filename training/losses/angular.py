"""Angular loss with N-pair loss (Wang et al. 2017, Deep Metric Learning with Angular Loss).

    L = weight * mean_(a,p) log(1 + sum_n exp(f_apn)) + npair_weight * L_npair(psi) + nu * mean |psi|^2
    f_apn = 4 tan^2(alpha) (phi_a + phi_p).phi_n - 2 (1 + tan^2(alpha)) phi_a.phi_p

psi are raw embeddings and phi = psi / |psi|.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import normalize

from training.batch import EmbeddingBatch
from training.functional import Triplets, mean_norm
from training.losses.base import MetricLoss
from training.losses.n_pair import NPairs, check_pairs, choose_pairs, join_triplets, log_one_plus, n_pair_loss


class AngularLoss(MetricLoss):
    """Angular loss on unit embeddings; with weights also N-pair loss on raw embeddings, and a penalty on their length.

    Args:
        alpha: Angle in degrees; 45 in Roth et al. 2020, Revisiting, appendix A.
        weight: Weight of the angular term; 2 in the same place.
        npair_weight: Weight of the N-pair loss; 1 in the same place.
        nu: Weight of the penalty on the length; .005 in the same place.
        pairs: Choice of the pairs, as in `NPairsLoss`; "random" in the same place.
        squared_norm: Form of the penalty, as in `NPairsLoss`.
    """

    normalize_embeddings = False
    tuples = Triplets
    several_negatives = True
    """As in `NPairsLoss`."""

    def __init__(
        self,
        alpha: float = 40.0,
        *,
        weight: float = 1.0,
        npair_weight: float = 0.0,
        nu: float = 0.0,
        pairs: str = "all",
        squared_norm: bool = True,
    ) -> None:
        super().__init__()
        check_pairs(pairs)
        self.tan2 = math.tan(math.radians(alpha)) ** 2
        self.alpha, self.weight, self.npair_weight, self.nu = alpha, weight, npair_weight, nu
        self.pairs, self.squared_norm = pairs, squared_norm

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | None) -> Tensor:
        """Return the loss, a scalar. Triplets choose the anchors, their positives and their negatives."""
        pairs = choose_pairs(batch, self.pairs) if tuples is None else join_triplets(tuples, len(batch.labels))
        terms = [self.npair_weight * n_pair_loss(batch.rows, pairs)] if self.npair_weight else []
        terms.append(self.weight * self._angular(normalize(batch.rows, dim=1), pairs))
        if self.nu:
            terms.append(self.nu * mean_norm(batch.rows, self.squared_norm))
        return sum(terms[1:], terms[0])

    def _angular(self, phi: Tensor, pairs: NPairs) -> Tensor:
        anchors, positives = phi[pairs.anchors], phi[pairs.positives]
        pushed = 4 * self.tan2 * (anchors + positives) @ phi[pairs.candidates].T
        pulled = 2 * (1 + self.tan2) * (anchors * positives).sum(1, keepdim=True)
        return log_one_plus(pushed - pulled, pairs.negative)
