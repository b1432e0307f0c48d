"""Quadruplet loss (Chen et al. 2017, Beyond Triplet Loss: A Deep Quadruplet Network).

    L = mean [d_ap - d_an + margin]+ + mean [d_ap - d_nn' + second_margin]+

n and n' are of different classes, and neither is of the anchor's class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.functional import Quadruplets, Triplets, hinges, positive_mask
from training.losses.base import MetricLoss


class QuadrupletLoss(MetricLoss):
    """Triplet loss plus a second hinge that compares the positive pair with a pair of two other classes.

    In the code published with Roth et al. 2020, Revisiting, n' only avoids the index n and can be of any class; this is
    not copied.

    Args:
        margin: 0.2 in Revisiting, appendix A, with n by distance-weighted mining.
        second_margin: 0.2 in the same place.
        squared: Compare squared distances, as Chen et al. do. Revisiting and its published code do not.
    """

    main_constant = "margin"
    tuples = Quadruplets

    def __init__(self, margin: float = 0.2, second_margin: float = 0.2, *, squared: bool = False) -> None:
        super().__init__()
        self.margin, self.second_margin, self.squared = margin, second_margin, squared

    def compute(self, batch: EmbeddingBatch, tuples: Quadruplets | Triplets | None) -> Tensor:
        """Return the loss, a scalar.

        n' is drawn at random for triplets. Without tuples n is drawn too, for every ordered positive pair. A tuple for
        which the batch has no n' counts in the first mean only.
        """
        a, p, n, second = tuples if isinstance(tuples, Quadruplets) else add_second_negatives(batch.labels, tuples)
        positive = self._distances(batch, a, p)
        first = hinges(positive - self._distances(batch, a, n) + self.margin)
        has_second = second >= 0
        gap = positive[has_second] - self._distances(batch, n[has_second], second[has_second])
        second_terms = hinges(gap + self.second_margin)
        self.last_terms = first.detach(), second_terms.detach()
        return first.mean(active_only=False) + second_terms.mean(active_only=False)

    def _distances(self, batch: EmbeddingBatch, i: Tensor, j: Tensor) -> Tensor:
        distances = batch.pair_distances(i, j)
        return distances.square() if self.squared else distances


def add_second_negatives(labels: Tensor, tuples: Triplets | None) -> Quadruplets:
    """Return triplets with a random n', or -1 if the batch lacks one; without triplets, draw n per positive pair."""
    if tuples is None:
        a, p = positive_mask(labels).nonzero(as_tuple=True)
        n = draw_other_class(labels, labels[a], labels[a])
        a, p, n = a[n >= 0], p[n >= 0], n[n >= 0]
    else:
        a, p, n = tuples
    return Quadruplets(a, p, n, draw_other_class(labels, labels[a], labels[n]))


def draw_other_class(labels: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return random samples, int64 [t], neither of class first[i] nor of class second[i]; -1 without such a sample."""
    by_class = labels.argsort()
    ordered = labels[by_class]
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    (low_start, low_size), (high_start, high_size) = _block(ordered, low), _block(ordered, high)
    high_size = high_size.masked_fill(low == high, 0)
    room = len(labels) - low_size - high_size
    # A random position among the remaining samples, moved past the two blocks that are left out.
    position = torch.randint(2**62, room.shape, device=labels.device) % room.clamp(min=1)
    position = position + torch.where(position >= low_start, low_size, 0)
    position = position + torch.where(position >= high_start, high_size, 0)
    return torch.where(room > 0, by_class[position.clamp(max=len(labels) - 1)], -1)


def _block(ordered: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and size of each label's block in ascending labels."""
    start = torch.searchsorted(ordered, labels)
    return start, torch.searchsorted(ordered, labels, right=True) - start
