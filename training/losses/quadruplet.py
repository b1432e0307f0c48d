"""Quadruplet loss (Chen et al. 2017, Beyond Triplet Loss)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.functional import Quadruplets, Triplets, check_batch, hinges, pair_distances, positive_mask


class Quadruplet(nn.Module):
    """Mean of [d_ap^2 - d_an^2 + margin]+ plus mean of [d_ap^2 - d_nn'^2 + second_margin]+.

    n and n' are of different classes, both different from the anchor's. d is the Euclidean distance of unit
    embeddings; squared=False leaves it unsquared, as in the code published with Roth et al. 2020, Revisiting. (There
    n' only avoids the index n and can be of any class.) Constants of its appendix A: margins 0.2, n by
    distance-weighted mining.
    """

    def __init__(self, classes: int, margin: float = 0.2, second_margin: float = 0.2, squared: bool = True) -> None:
        super().__init__()
        self.margin, self.second_margin, self.squared = margin, second_margin, squared

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: Quadruplets | Triplets | None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b].

        n' is drawn at random where triplets are given, and n also where nothing is given, for every ordered positive
        pair. Tuples for which the batch has no n' count in the first mean only.
        """
        check_batch(embeddings, labels)
        a, p, n, other = tuples if isinstance(tuples, Quadruplets) else add_second_negatives(labels, tuples)
        positive = self._distances(embeddings, a, p)
        first = hinges(positive - self._distances(embeddings, a, n) + self.margin)
        known = other >= 0
        second = positive[known] - self._distances(embeddings, n[known], other[known])
        return first.mean(active_only=False) + hinges(second + self.second_margin).mean(active_only=False)

    def _distances(self, embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distances = pair_distances(embeddings, i, j)
        return distances.square() if self.squared else distances


def add_second_negatives(labels: Tensor, tuples: Triplets | None) -> Quadruplets:
    """Triplets with a random n'; -1 where there is none. Without triplets, a random n for every positive pair."""
    if tuples is None:
        a, p = positive_mask(labels).nonzero(as_tuple=True)
        n = draw_other_class(labels, labels[a], labels[a])
        a, p, n = a[n >= 0], p[n >= 0], n[n >= 0]
    else:
        a, p, n = tuples
    return Quadruplets(a, p, n, draw_other_class(labels, labels[a], labels[n]))


def draw_other_class(labels: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """int64 [t]: random samples that are neither of class first[i] nor of class second[i]; -1 where there are none."""
    by_class = labels.argsort()
    ordered = labels[by_class]
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    (low_start, low_size), (high_start, high_size) = _block(ordered, low), _block(ordered, high)
    high_size = high_size.masked_fill(low == high, 0)
    room = len(labels) - low_size - high_size
    # A place among the samples left, moved past the two blocks that are left out.
    place = torch.randint(2**62, room.shape, device=labels.device) % room.clamp(min=1)
    place = place + torch.where(place >= low_start, low_size, 0)
    place = place + torch.where(place >= high_start, high_size, 0)
    return torch.where(room > 0, by_class[place.clamp(max=len(labels) - 1)], -1)


def _block(ordered: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Start and size of each label's block in ascending labels."""
    start = torch.searchsorted(ordered, labels)
    return start, torch.searchsorted(ordered, labels, right=True) - start
