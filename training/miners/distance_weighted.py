"""Distance-weighted sampling of negatives (Wu et al. 2017, Sampling Matters, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.distances import unit_distances
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
        weights = self.weights(embeddings, labels)
        positives = positive_mask(labels) & (weights.sum(1) > 0)[:, None]
        anchors, others = positives.nonzero(as_tuple=True)
        if len(anchors) == 0:
            return Triplets(anchors, others, others)
        counts = positives.sum(1)
        # Rows without a draw get a uniform one that nobody reads: multinomial refuses rows of zeros.
        drawn = torch.multinomial(weights + (counts == 0)[:, None], int(counts.max()), replacement=True)
        nth_of_anchor = positives.cumsum(1)[anchors, others] - 1
        return Triplets(anchors, others, drawn[anchors, nth_of_anchor])

    def weights(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """float32 [b, b]: the weight of drawing j as negative of i; the largest of a row is 1, rows may be all 0."""
        distances = unit_distances(embeddings.detach().float())
        negatives = negative_mask(labels)
        log_weights = -log_density(distances.clamp(min=self.nearest), embeddings.shape[1])
        if self.farthest is not None:
            near = negatives & (distances <= self.farthest)
            beyond = negatives & ~near.any(1, keepdim=True)
            # Where all negatives lie beyond the cut, they are drawn evenly (as in the authors' code).
            log_weights = torch.where(beyond, torch.zeros_like(log_weights), log_weights)
            negatives = near | beyond
        log_weights = log_weights.masked_fill(~negatives, -torch.inf)
        largest = log_weights.amax(1, keepdim=True)
        return torch.where(negatives, (log_weights - largest).exp(), torch.zeros_like(log_weights))


def log_density(distances: Tensor, dim: int) -> Tensor:
    """log q(d) up to a constant: distances in (0, 2] between random points of the unit sphere in `dim` dimensions."""
    squared = distances.square()
    return (dim - 2) * distances.log() + (dim - 3) / 2 * (1 - squared / 4).clamp(min=1e-8).log()
