"""NT-Xent (Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations, eq. 1).

L = -mean_(a,p) log(exp(s_ap / T) / (exp(s_ap / T) + sum_n exp(s_an / T)))
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.nn.functional import softplus

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Pairs
from training.losses.base import MetricLoss
from training.pml import Parts, Terms


class NTXentLoss(MetricLoss):
    """Normalised temperature-scaled cross entropy of each positive pair against the anchor's negatives.

    The paper has one positive per anchor. With several, each is compared with the negatives alone.

    Args:
        temperature: T; 0.1 is the paper's best.
        parts: See `MetricLoss`.
    """

    main_constant = "temperature"
    takes_distance = True
    tuples = Pairs
    compares_references = True

    def __init__(self, temperature: float = 0.07, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.temperature = temperature

    def compute(self, batch: EmbeddingBatch, tuples: Pairs | None) -> Tensor:
        """Return the loss, a scalar, over the pairs, repetitions included, or over all of the batch."""
        values = self.terms(batch, tuples)["loss"].values
        return values.sum() / max(1, len(values))

    def terms(self, batch: EmbeddingBatch, tuples: Pairs | None) -> dict[str, Terms]:
        """Return the terms of the positive pairs, for a reducer."""
        logits = batch.cosines() / self.temperature
        if tuples is None:
            anchors, positives = batch.positive.nonzero(as_tuple=True)
            pushed = functional.masked_logsumexp(logits, batch.negative)
        else:
            anchors, positives = tuples.anchors_p, tuples.positives
            counts = logits.new_zeros(logits.shape).index_put(
                (tuples.anchors_n, tuples.negatives), logits.new_ones(len(tuples.anchors_n)), accumulate=True
            )
            pushed = functional.masked_logsumexp(logits + counts.clamp(min=1).log(), counts > 0)
        values = softplus(pushed[anchors] - logits[anchors, positives])
        return {"loss": Terms(values, (anchors, positives), "pos_pair")}
