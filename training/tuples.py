"""Mined tuples: index tensors into a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.errors import UsageError


class Triplets(NamedTuple):
    """t triplets; each field int64 [t], indices of rows of the batch."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor


class Quadruplets(NamedTuple):
    """t triplets with a second negative; each field int64 [t]. Classes of anchor, negative and other all differ."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    others: Tensor


class Pairs(NamedTuple):
    """t positive pairs (anchors_p[i], positives[i]) and u negative pairs (anchors_n[i], negatives[i]); all int64."""

    anchors_p: Tensor
    positives: Tensor
    anchors_n: Tensor
    negatives: Tensor


def only_triplets(tuples: NamedTuple) -> Triplets:
    """The tuples, which a miner of another kind may have given. Raises `UsageError` for those."""
    if isinstance(tuples, Triplets):
        return tuples
    kind = type(tuples).__name__.lower()
    raise UsageError(f"this loss takes triplets, not {kind}; choose a miner that gives triplets, or leave it out.")


def to_pairs(tuples: Triplets | Pairs) -> Pairs:
    """The positive and negative pairs of triplets; pairs as they are."""
    if isinstance(tuples, Pairs):
        return tuples
    return Pairs(tuples.anchors, tuples.positives, tuples.anchors, tuples.negatives)


def positive_mask(labels: Tensor) -> Tensor:
    """bool [b, b]: i and j are two different samples of one class."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Anchors and positives, int64 [t] each: every ordered pair of two different samples of one class, class by class.

    From sorted labels, in O(b log b + t), where the b x b matrix would cost more than what is mined from it.
    """
    ordered, order = labels.sort(stable=True)
    start = torch.searchsorted(ordered, ordered)
    others = torch.searchsorted(ordered, ordered, right=True) - start - 1
    places = torch.arange(len(labels), device=labels.device).repeat_interleave(others)
    # A place's own first pair is the sum of what came before it; its positives are its class without itself.
    first = others.cumsum(0) - others
    other = torch.arange(len(places), device=labels.device) + (start - first)[places]
    return order[places], order[other + (other >= places)]


def negative_mask(labels: Tensor) -> Tensor:
    """bool [b, b]: i and j are of different classes."""
    return labels[:, None] != labels[None, :]
