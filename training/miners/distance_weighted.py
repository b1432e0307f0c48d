"""Distance-weighted sampling of negatives (Wu et al. 2017, Sampling Matters, section 4.1)."""

from __future__ import annotations

from torch import Tensor

from training.miners.drawing import draw, prefer
from training.tuples import Triplets, negative_mask, positive_mask


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
        negatives = negative_mask(labels)
        anchors, positives = (positive_mask(labels) & negatives.any(1)[:, None]).nonzero(as_tuple=True)
        return Triplets(anchors, positives, draw(self.weights(embeddings, negatives), anchors))

    def weights(self, embeddings: Tensor, candidates: Tensor) -> Tensor:
        """float32 [b, b]: the weight of drawing j for i among the candidates, bool [b, b]; a row's largest is 1.

        Rows without candidates are 0. Where all candidates lie beyond the cut they weigh the same.
        """
        unit = embeddings.detach().float()
        # In place where it can be, for fresh memory takes longer than the arithmetic. Embeddings that are not finite
        # are for the loss to report, not for the miner to fail on.
        squared = (2 - 2 * unit @ unit.T).nan_to_num_(4.0)
        if self.farthest is not None:
            candidates = prefer(candidates & (squared <= self.farthest**2), candidates)
        squared.clamp_(self.nearest**2, (self.farthest or 2.0) ** 2)
        log_weights = log_density(squared, unit.shape[1]).neg_()
        largest = (log_weights - 1e30 * ~candidates).amax(1, keepdim=True)
        return log_weights.sub_(largest).clamp_(-80, 0).exp_().mul_(candidates)  # below e^-80 exp is slow


def log_density(squared: Tensor, dim: int) -> Tensor:
    """log q(d) up to a constant, from squared distances in (0, 4] of random points of the unit sphere in `dim`."""
    toward_opposite = (1 - squared / 4).clamp_(min=1e-8).log_()
    return squared.log().mul_((dim - 2) / 2).add_(toward_opposite, alpha=(dim - 3) / 2)
