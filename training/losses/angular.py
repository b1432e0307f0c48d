"""Angular loss with N-pair loss (Wang et al. 2017, Deep Metric Learning with Angular Loss).

    L = weight * mean_(a,p) log(1 + sum_n exp(f_apn)) + npair_weight * L_npair(psi) + nu * mean |psi|^2
    f_apn = 4 tan^2(alpha) (phi_a + phi_p).phi_n - 2 (1 + tan^2(alpha)) phi_a.phi_p

psi are raw embeddings and phi = psi / |psi|.
"""

from __future__ import annotations

import math
from typing import Unpack

from torch import Tensor
from torch.nn.functional import normalize

from training.batch import EmbeddingBatch
from training.functional import Pairs, Triplets
from training.losses.base import norm_penalty
from training.losses.n_pair import NPairs, PairChoosingLoss, log_one_plus, mean_of_terms, n_pair_terms
from training.pml import Parts, Terms


class AngularLoss(PairChoosingLoss):
    """Angular loss on unit embeddings; with weights also N-pair loss on raw embeddings, and a penalty on their length.

    Args:
        alpha: Angle in degrees; 45 in Roth et al. 2020, Revisiting, appendix A.
        weight: Weight of the angular term; 2 in the same place.
        npair_weight: Weight of the N-pair loss; 1 in the same place.
        nu: Weight of the penalty on the length; .005 in the same place.
        pairs: Choice of the pairs, as in `NPairsLoss`; "random" in the same place.
        squared_norm: Form of the penalty, as in `NPairsLoss`.
        mined_negatives: See `PairChoosingLoss`.
        parts: See `MetricLoss`.
    """

    main_constant = "weight"
    own_distance = "LpDistance(power=1)"
    compares_references = True
    normalize_embeddings = False

    def __init__(
        self,
        alpha: float = 40.0,
        *,
        weight: float = 1.0,
        npair_weight: float = 0.0,
        nu: float = 0.0,
        pairs: str = "all",
        squared_norm: bool = True,
        mined_negatives: bool = False,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(pairs, mined_negatives, **parts)
        self.tan2 = math.tan(math.radians(alpha)) ** 2
        self.alpha, self.weight, self.npair_weight, self.nu = alpha, weight, npair_weight, nu
        self.squared_norm = squared_norm

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | Pairs | None) -> Tensor:
        """Return the loss, a scalar."""
        first, *others = (mean_of_terms(terms.values) for terms in self.terms(batch, tuples).values())
        return sum(others, first)

    def terms(self, batch: EmbeddingBatch, tuples: Triplets | Pairs | None) -> dict[str, Terms]:
        """Return the terms by name: of the N-pair loss, if it has a weight, and of the angles."""
        pairs = self.chosen(batch, tuples)
        chosen = pairs.anchors, pairs.positives
        angles = self.weight * self._angular(normalize(batch.rows, dim=1), normalize(batch.others, dim=1), pairs)
        terms = {"loss": Terms(angles, chosen, "pos_pair")}
        if self.npair_weight:
            return {"npair": Terms(self.npair_weight * n_pair_terms(batch, pairs), chosen, "pos_pair"), **terms}
        return terms

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name: the penalty on the length, and those of regularizers."""
        return {**super().penalties(batch, embeddings), **norm_penalty(batch, self.nu, self.squared_norm)}

    def _angular(self, phi: Tensor, others: Tensor, pairs: NPairs) -> Tensor:
        anchors, positives = phi[pairs.anchors], others[pairs.positives]
        pushed = 4 * self.tan2 * (anchors + positives) @ others[pairs.candidates].T
        pulled = 2 * (1 + self.tan2) * (anchors * positives).sum(1, keepdim=True)
        return log_one_plus(pushed - pulled, pairs.negative)
