"""Distance-weighted sampling of negatives (Wu et al. 2017, Sampling Matters, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, negative_mask, positive_pairs


class DistanceWeighted:
    """One triplet for every ordered positive pair, its negative drawn with weight 1 / q(d).

    q(d) ~ d^(D-2) (1 - d^2/4)^((D-3)/2) is the density of distances between random points of the unit sphere in D
    dimensions. d counts as at least `nearest` (which bounds the weights); negatives farther than `farthest` are not
    drawn as long as the anchor has nearer ones (None: no upper cut, as in the code published with Roth et al. 2020).
    """

    def __init__(self, nearest: float = 0.5, farthest: float | None = 1.4) -> None:
        self.nearest, self.farthest = nearest, farthest

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b]; none for anchors without a positive or a negative."""
        check_batch(embeddings, labels)
        anchors, positives = positive_pairs(labels)
        negatives = negative_mask(labels)
        if len(anchors) and not negatives[:1].any():  # a batch of one class
            anchors, positives = anchors[:0], positives[:0]
        return Triplets(anchors, positives, draw_columns(self.weights(embeddings, negatives), anchors))

    def weights(self, embeddings: Tensor, candidates: Tensor) -> Tensor:
        """float32 [b, b]: the weight of drawing j for i among the candidates, bool [b, b]; a row's largest is 1.

        What is no candidate weighs under 1e-34, which `draw` never draws. Where all candidates lie beyond the cut they
        weigh the same.
        """
        # Embeddings that are not finite are for the loss to report, not for the miner to fail on.
        unit = embeddings.detach().float().nan_to_num(0.0, 0.0, 0.0)
        # In place where it can be, for fresh memory takes longer than the arithmetic; and in floats, since masks, log1p
        # and exp of infinity take several times as long as sums, log and exp of -80.
        squared = torch.addmm(unit.new_full((1,), 2.0), unit, unit.T, alpha=-2)
        barred = (~candidates).view(torch.uint8).float().mul_(1e30)
        if self.farthest is not None:  # barred as long as there is anything nearer
            barred.add_(torch.gt(squared, self.farthest**2, out=torch.empty_like(squared)), alpha=1e28)
        squared.clamp_(self.nearest**2, (self.farthest or 2.0) ** 2)
        logs = log_density(squared, unit.shape[1]).add_(barred)
        least = logs.amin(1, keepdim=True).clamp_(max=1e29)
        return torch.sub(least, logs, out=logs).clamp_(min=-80).exp_()


def log_density(squared: Tensor, dim: int) -> Tensor:
    """log q(d) up to a constant, from squared distances in (0, 4] of random points of the unit sphere in `dim`."""
    toward_opposite = (4 - squared).clamp_(min=4e-8).log_()
    return squared.log().mul_((dim - 2) / 2).add_(toward_opposite, alpha=(dim - 3) / 2)
