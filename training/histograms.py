"""Differentiable histograms: a value is shared by the two nodes around it (Ustinova & Lempitsky 2016, section 3)."""

from __future__ import annotations

from torch import Tensor

from training.tuples import negative_mask

KINDS = 3
"""Kinds of pairs in `pair_kinds`: 0 positive, 1 negative, 2 a sample with itself."""


def pair_kinds(labels: Tensor) -> Tensor:
    """int64 [b, b], see `KINDS`."""
    return negative_mask(labels).long().fill_diagonal_(2)


def soft_histograms(values: Tensor, kinds: Tensor, nodes: int, lowest: float, highest: float) -> Tensor:
    """Histograms [r, KINDS, nodes] of the rows of values [r, m], one for each kind, int64 [r, m].

    The nodes are evenly spaced from lowest to highest; values beyond count as the end. A value between two nodes
    adds to either the share that grows linearly from 0 at the other node to 1 at itself. O(r m) for any node count.
    """
    position = ((values - lowest) * ((nodes - 1) / (highest - lowest))).clamp(0, nodes - 1)
    left = position.detach().long().clamp(max=nodes - 2)
    share = position - left
    bins = kinds * nodes + left
    histograms = values.new_zeros(len(values), KINDS * nodes)
    return histograms.scatter_add(1, bins, 1 - share).scatter_add(1, bins + 1, share).view(-1, KINDS, nodes)
