"""Differentiable histograms: a value is shared by the two nodes around it (Ustinova & Lempitsky 2016, section 3)."""

from __future__ import annotations

from torch import Tensor

from training.tuples import negative_mask

KINDS = 3
"""Kinds of pairs in `pair_kinds`: 0 positive, 1 negative, 2 a sample with itself."""


def pair_kinds(labels: Tensor) -> Tensor:
    """int64 [b, b], see `KINDS`."""
    return negative_mask(labels).long().fill_diagonal_(2)


def soft_histograms(values: Tensor, kinds: Tensor, nodes: int, first: float, last: float) -> Tensor:
    """Histograms [r, KINDS, nodes] of the rows of values [r, m], one for each kind, int64 [r, m].

    The nodes are evenly spaced from first to last, also downwards; values beyond count as the end. A value between
    two nodes adds to either the share that grows linearly from 0 at the other node to 1 at itself. O(r m) for any
    number of nodes.
    """
    position = ((values - first) * ((nodes - 1) / (last - first))).clamp(0, nodes - 1)
    # Clamped from below too: a value that is not a number has to come out as one, not as an index out of range.
    earlier = position.detach().long().clamp_(0, nodes - 2)
    bins = (kinds * nodes).add_(earlier)
    empty = values.new_zeros(len(values), KINDS * nodes)
    counts = empty.scatter_add(1, bins, empty.new_ones(()).expand_as(values)).view(-1, KINDS, nodes)
    # Of a bin's count this much falls to its later node; the last node begins no bin.
    passed_on = empty.scatter_add(1, bins, position - earlier).view(-1, KINDS, nodes)
    return counts - passed_on + passed_on.roll(1, dims=2)
