"""Distance-weighted sampling of negatives (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.1).

    P(n | a) ~ min(1 / q(cutoff), 1 / q(d_an)),  q(d) ~ d^(D-2) (1 - d^2/4)^((D-3)/2)

q is the density of distances between random points of the unit sphere in D dimensions.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Triplets, draw_columns
from training.miners.base import BaseMiner
from training.pml import MinerParts


class DistanceWeightedMiner(BaseMiner):
    """One triplet per ordered positive pair, with a negative drawn with weight 1 / q(d).

    Args:
        cutoff: Smaller distances count as this one, which bounds the weights.
        nonzero_loss_cutoff: Farther negatives are not drawn as long as the anchor has nearer ones. None: no upper cut,
            as in the code published with Roth et al. 2020, Revisiting.
        one_positive: One triplet per anchor, with a random positive, as in that code. With two samples per class both
            are the same.
        parts: See `BaseMiner`.
    """

    own_distance = "LpDistance(power=1)"

    def __init__(
        self,
        cutoff: float = 0.5,
        nonzero_loss_cutoff: float | None = 1.4,
        *,
        one_positive: bool = False,
        **parts: Unpack[MinerParts],
    ) -> None:
        super().__init__(**parts)
        self.cutoff, self.nonzero_loss_cutoff, self.one_positive = cutoff, nonzero_loss_cutoff, one_positive

    def mine(self, batch: EmbeddingBatch) -> Triplets:
        """Return one triplet per ordered positive pair, or per anchor."""
        if self.one_positive:
            anchors = batch.positive.any(1).nonzero()[:, 0]
            positives = draw_columns(batch.positive, anchors)
        else:
            anchors, positives = batch.positive_pairs()
        if batch.compares_itself:  # only a batch of one class has anchors without negatives
            able = len(anchors) and batch.negative[:1].any()
            anchors, positives = (anchors, positives) if able else (anchors[:0], positives[:0])
        else:
            able = batch.negative.any(1)[anchors]
            anchors, positives = anchors[able], positives[able]
        weights = self.weights(batch.rows, batch.negative, batch.others)
        return Triplets(anchors, positives, draw_columns(weights, anchors))

    def weights(self, rows: Tensor, candidates: Tensor, others: Tensor | None = None) -> Tensor:
        """Return the weights [b, m] of drawing j for i; the largest of a row is 1.

        If all candidates are beyond `nonzero_loss_cutoff`, they weigh the same. Others weigh less than 1e-34, which
        `draw_columns` never draws.

        Args:
            rows: Unit rows [b, d].
            candidates: bool [b, m].
            others: The candidates' unit rows [m, d]; by default the rows.
        """
        # The loss reports embeddings that are not finite; the miner must not fail on them.
        unit = rows.nan_to_num(0.0, 0.0, 0.0)
        columns = unit if others is None or others is rows else others.nan_to_num(0.0, 0.0, 0.0)
        # In place, because new memory takes longer than the arithmetic. In floats, because masks, log1p and exp of
        # infinity take several times as long as sums, log and exp of -80.
        squared = torch.addmm(unit.new_full((1,), 2.0), unit, columns.T, alpha=-2)
        penalty = (~candidates).view(torch.uint8).to(unit.dtype).mul_(1e30)
        if (
            self.nonzero_loss_cutoff is not None
        ):  # a smaller penalty, so that these are drawn if there is no nearer negative
            penalty.add_(torch.gt(squared, self.nonzero_loss_cutoff**2, out=torch.empty_like(squared)), alpha=1e28)
        squared.clamp_(max(self.cutoff**2, torch.finfo(unit.dtype).tiny), (self.nonzero_loss_cutoff or 2.0) ** 2)
        logs = log_density(squared, unit.shape[1]).add_(penalty)
        least = logs.amin(1, keepdim=True).clamp_(max=1e29)
        return torch.sub(least, logs, out=logs).clamp_(min=-80).exp_()


def log_density(squared: Tensor, dim: int) -> Tensor:
    """Return log q(d) up to a constant, from squared distances in (0, 4] on the unit sphere in `dim` dimensions."""
    toward_opposite = (4 - squared).clamp_(min=4e-8).log_()
    return squared.log().mul_((dim - 2) / 2).add_(toward_opposite, alpha=(dim - 3) / 2)
