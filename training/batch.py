"""Batch of embeddings as losses and miners see it, and the mined tuples that they pass on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from training.functional import (
    Pairs,
    Triplets,
    distances,
    negative_mask,
    pair_distances,
    positive_mask,
    positive_pairs,
)
from zoo.errors import RecipeError, UsageError


class EmbeddingBatch:
    """Rows with their labels, each of which is compared with all others of the batch, or with reference rows.

    Attributes:
        rows: Embeddings [b, d].
        labels: int64 [b].
        others: The rows that they are compared with, [m, d]: themselves, or the reference rows.
        other_labels: int64 [m].
        compares_itself: Whether the others are the rows themselves; a row is then no pair with itself.
        distance: What the user compares them by, as the distances of pytorch-metric-learning; None: by cosines or
            Euclidean distances.
        is_inverted: Whether that distance grows with similarity.
    """

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        distance: Callable[..., Tensor] | None = None,
    ) -> None:
        self.rows, self.labels, self.distance = rows, labels, distance
        self.is_inverted = bool(getattr(distance, "is_inverted", False))
        self.compares_itself = references is None or reference_labels is None
        self.others = rows if references is None else references
        self.other_labels = labels if reference_labels is None else reference_labels

    @cached_property
    def positive(self) -> Tensor:
        """The mask, bool [b, m], of pairs of one class."""
        if self.compares_itself:
            return positive_mask(self.labels)
        return self.labels[:, None] == self.other_labels

    @cached_property
    def negative(self) -> Tensor:
        """The mask, bool [b, m], of pairs of different classes."""
        return negative_mask(self.labels, self.other_labels)

    def positive_pairs(self) -> tuple[Tensor, Tensor]:
        """Return anchors and positives, int64 [t] each, of all pairs of one class."""
        if self.compares_itself:
            return positive_pairs(self.labels)
        anchors, positives = self.positive.nonzero(as_tuple=True)
        return anchors, positives

    def all_pairs(self) -> Pairs:
        """Return every pair of the batch."""
        return Pairs(*self.positive.nonzero(as_tuple=True), *self.negative.nonzero(as_tuple=True))

    def masks(self, pairs: Pairs | None) -> tuple[Tensor, Tensor]:
        """Return the masks, bool [b, m], of the pairs that count as positive and of those that count as negative."""
        if pairs is None:
            return self.positive, self.negative
        positive = torch.zeros(len(self.rows), len(self.others), dtype=torch.bool, device=self.rows.device)
        negative = torch.zeros_like(positive)
        positive[pairs.anchors_p, pairs.positives] = True
        negative[pairs.anchors_n, pairs.negatives] = True
        return positive, negative

    def cosines(self) -> Tensor:
        """Return the similarities [b, m]: inner products (cosines of unit rows), or those that the user chose."""
        return self.rows @ self.others.T if self.distance is None else -self.distances()

    def distances(self) -> Tensor:
        """Return the distances [b, m]: Euclidean ones, or those that the user chose; similarities become negative."""
        if self.distance is None:
            return distances(self.rows, None if self.compares_itself else self.others)
        values = self.distance(self.rows, self.others)
        return -values if self.is_inverted else values

    def threshold(self, value: Any) -> Any:
        """Return a constant on the scale of the user's distance as a threshold of `distances`."""
        return -value if self.is_inverted else value

    def pair_distances(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the distances [t] of the rows i from the others j, int64 [t] each."""
        if self.distance is not None:
            return self.distances()[i, j]
        if self.compares_itself:
            return pair_distances(self.rows, i, j)
        return pair_distances(torch.cat([self.rows, self.others]), i, j + len(self.rows))

    def between_others(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the distances [t] between the others i and j, int64 [t] each."""
        return EmbeddingBatch(self.others, self.other_labels, distance=self.distance).pair_distances(i, j)

    def triplet_distances(self, triplets: Triplets) -> tuple[Tensor, Tensor]:
        """Return the distances of the anchors from their positives and from their negatives, [t] each."""
        anchors, positives, negatives = triplets
        both = self.pair_distances(torch.cat([anchors, anchors]), torch.cat([positives, negatives]))
        return both[: len(anchors)], both[len(anchors) :]


def read_batch(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    unit: bool = True,
    distance: Callable[..., Tensor] | None = None,
) -> EmbeddingBatch:
    """Check the arguments of a loss or a miner, and return them as a batch.

    Embeddings are not read, because that would wait for the device. Half precision becomes float32, except under
    autocast, which decides itself.

    Args:
        embeddings: [b, d], of any floating type.
        labels: [b], of any integer type.
        ref_emb: [m, d], or None: the embeddings themselves.
        ref_labels: [m].
        unit: Scale the rows to unit length.
        distance: What compares the rows, as they come; None: cosines or Euclidean distances.

    Raises:
        UsageError: If a shape or type is wrong.
    """
    if (ref_emb is None) != (ref_labels is None):
        raise UsageError("ref_emb and ref_labels belong together; give both or neither.", code="invalid-value")
    unit = unit and distance is None  # a distance scales rows itself
    rows, own_labels = _read_rows(embeddings, unit), _read_labels(embeddings, labels)
    if ref_emb is None or ref_labels is None:
        return EmbeddingBatch(rows, own_labels, distance=distance)
    return EmbeddingBatch(rows, own_labels, _read_rows(ref_emb, unit), _read_labels(ref_emb, ref_labels), distance)


def _read_rows(embeddings: Tensor, unit: bool) -> Tensor:
    if not embeddings.is_floating_point():
        raise UsageError(f"embeddings must be floats, not {_name(embeddings.dtype)}.", code="invalid-value")
    if embeddings.dtype.itemsize < 4 and not torch.is_autocast_enabled(embeddings.device.type):
        embeddings = embeddings.float()
    return normalize(embeddings, dim=1) if unit else embeddings


def _read_labels(embeddings: Tensor, labels: Tensor) -> Tensor:
    labels = torch.as_tensor(labels)  # also those of NumPy
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise UsageError(
            f"embeddings must be [b, d] and labels [b], not {list(embeddings.shape)} and {list(labels.shape)}.",
            code="invalid-value",
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UsageError(
            f"labels must be whole numbers, not {_name(labels.dtype)}; convert them with labels.long().",
            code="invalid-labels",
        )
    return labels.to(embeddings.device, torch.int64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_classes(labels: Tensor, classes: int) -> None:
    """Raise `RecipeError` for a label [b] outside 0 to classes - 1, on a CPU only.

    Reading labels of an accelerator would wait for it; its own index check finds such labels there.
    """
    if labels.device.type == "cpu" and len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise RecipeError(
            f"labels must be from 0 to {classes - 1} for {classes} classes, not {labels.min()} to {labels.max()}.",
            code="invalid-labels",
        )


TUPLES = {3: Triplets, 4: Pairs}
"""The kind of plain tuples by their length: (anchors, positives, negatives) or (anchors, positives, anchors,
negatives)."""


def read_tuples(indices: Sequence[Tensor]) -> Triplets | Pairs:
    """Return index tuples of any miner as one of our kinds.

    Raises:
        UsageError: If they are neither triplets nor pairs.
    """
    if isinstance(indices, Triplets | Pairs):
        return indices
    if not isinstance(indices, tuple | list) or len(indices) not in TUPLES:
        raise UsageError(
            "indices_tuple must be (anchors, positives, negatives) or (anchors, positives, anchors, negatives), each "
            f"int64 [t], not {type(indices).__name__}.",
            code="invalid-value",
        )
    kind: Any = TUPLES[len(indices)]
    tuples: Triplets | Pairs = kind(*indices)
    return tuples


def all_triplets(batch: EmbeddingBatch) -> Triplets:
    """Return every triplet of a batch."""
    anchors, positives = batch.positive_pairs()
    pairs, negatives = batch.negative[anchors].nonzero(as_tuple=True)
    return Triplets(anchors[pairs], positives[pairs], negatives)


def join_pairs(pairs: Pairs) -> Triplets:
    """Return every triplet of a positive and a negative pair of one anchor."""
    p, n = (pairs.anchors_p[:, None] == pairs.anchors_n).nonzero(as_tuple=True)
    return Triplets(pairs.anchors_p[p], pairs.positives[p], pairs.negatives[n])
