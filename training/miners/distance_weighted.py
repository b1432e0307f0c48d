"""Distance-weighted sampling of negatives (Wu et al. 2017, Sampling Matters in Deep Embedding Learning, section 4.1).

    P(n | a) ~ min(1 / q(nearest), 1 / q(d_an)),  q(d) ~ d^(D-2) (1 - d^2/4)^((D-3)/2)

q is the density of distances between random points of the unit sphere in D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, negative_mask, positive_mask, positive_pairs


class DistanceWeightedMiner:
    """One triplet per ordered positive pair, with a negative drawn with weight 1 / q(d).

    Args:
        nearest: Smaller distances count as this one, which bounds the weights.
        farthest: Farther negatives are not drawn as long as the anchor has nearer ones. None: no upper cut, as in the
            code published with Roth et al. 2020, Revisiting.
        one_positive: One triplet per anchor, with a random positive, as in that code. With two samples per class both
            are the same.
    """

    def __init__(self, nearest: float = 0.5, farthest: float | None = 1.4, one_positive: bool = False) -> None:
        self.nearest, self.farthest, self.one_positive = nearest, farthest, one_positive

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        if self.one_positive:
            same = positive_mask(labels)
            anchors = same.any(1).nonzero()[:, 0]
            positives = draw_columns(same, anchors)
        else:
            anchors, positives = positive_pairs(labels)
        negatives = negative_mask(labels)
        if len(anchors) and not negatives[:1].any():  # a batch of one class
            anchors, positives = anchors[:0], positives[:0]
        return Triplets(anchors, positives, draw_columns(self.weights(embeddings, negatives), anchors))

    def weights(self, embeddings: Tensor, candidates: Tensor) -> Tensor:
        """Return the weights, float32 [b, b], of drawing j for i; the largest of a row is 1.

        If all candidates are beyond `farthest`, they weigh the same. Others weigh less than 1e-34, which
        `draw_columns` never draws.

        Args:
            embeddings: Unit rows [b, d].
            candidates: bool [b, b].
        """
        # The loss reports embeddings that are not finite; the miner must not fail on them.
        unit = embeddings.detach().float().nan_to_num(0.0, 0.0, 0.0)
        # In place, because new memory takes longer than the arithmetic. In floats, because masks, log1p and exp of
        # infinity take several times as long as sums, log and exp of -80.
        squared = torch.addmm(unit.new_full((1,), 2.0), unit, unit.T, alpha=-2)
        penalty = (~candidates).view(torch.uint8).float().mul_(1e30)
        if self.farthest is not None:  # a smaller penalty, so that these are drawn if there is no nearer negative
            penalty.add_(torch.gt(squared, self.farthest**2, out=torch.empty_like(squared)), alpha=1e28)
        squared.clamp_(self.nearest**2, (self.farthest or 2.0) ** 2)
        logs = log_density(squared, unit.shape[1]).add_(penalty)
        least = logs.amin(1, keepdim=True).clamp_(max=1e29)
        return torch.sub(least, logs, out=logs).clamp_(min=-80).exp_()


def log_density(squared: Tensor, dim: int) -> Tensor:
    """Return log q(d) up to a constant, from squared distances in (0, 4] on the unit sphere in `dim` dimensions."""
    toward_opposite = (4 - squared).clamp_(min=4e-8).log_()
    return squared.log().mul_((dim - 2) / 2).add_(toward_opposite, alpha=(dim - 3) / 2)
