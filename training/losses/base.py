"""Base of the losses: one call for all of them, that of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.batch import EmbeddingBatch, check_classes, join_pairs, read_batch, read_tuples
from training.functional import Hinges, Pairs, Quadruplets, Triplets, to_pairs
from zoo.errors import UsageError


class MetricLoss(nn.Module):
    """A loss of embeddings with labels, called as `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`.

    A subclass defines `compute`, which gets checked values.

    Attributes:
        normalize_embeddings: Whether the loss scales embeddings to unit length itself.
        embeddings_are_scaled: Whether a caller has done this before; the loss then uses the embeddings unchanged.
        tuples: The kind of tuples that `compute` takes; None: it takes none.
        joins_pairs: Pairs become all their triplets, for a loss of triplets.
        compares_references: Whether the loss takes reference embeddings.
        num_classes: The number of classes that it has parameters for, or None.
        last_terms: The terms [x]+ of its last batch, in groups and without gradient, if it has such terms.
    """

    normalize_embeddings: bool = True
    embeddings_are_scaled = False
    tuples: type | None = None
    joins_pairs = False
    compares_references = False
    num_classes: int | None = None
    last_terms: tuple[Hinges, ...] = ()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            embeddings: [b, d]; they are scaled to unit length, unless `normalize_embeddings` is false.
            labels: [b], of any integer type.
            indices_tuple: Mined triplets (anchors, positives, negatives) or pairs (anchors, positives, anchors,
                negatives), int64 [t]; None: all of the batch.
            ref_emb: [m, d]; the embeddings are compared with these instead of with one another. Anchors are rows of the
                embeddings then, positives and negatives rows of these.
            ref_labels: [m].

        Raises:
            UsageError: If a shape, a type, or a kind of tuples is wrong.
            RecipeError: If the loss has parameters by class, and a label is outside 0 to num_classes - 1.
        """
        if ref_emb is not None and not self.compares_references:
            raise UsageError(
                f"{type(self).__name__} does not take ref_emb; leave it out.", code="option-without-effect"
            )
        unit = self.normalize_embeddings and not self.embeddings_are_scaled
        batch = read_batch(embeddings, labels, ref_emb, ref_labels, unit)
        if self.num_classes is not None:
            check_classes(batch.labels, self.num_classes)
        return self.compute(batch, None if indices_tuple is None else self._own_tuples(indices_tuple))

    def compute(self, batch: EmbeddingBatch, tuples: Any) -> Tensor:
        """Return the loss, a scalar, of a batch and of tuples of the class's kind or None."""
        raise NotImplementedError

    def _own_tuples(self, indices: Sequence[Tensor]) -> Triplets | Quadruplets | Pairs:
        """Return the tuples as the kind that the loss takes."""
        tuples = indices if isinstance(indices, Quadruplets) else read_tuples(indices)
        if self.tuples is Pairs and isinstance(tuples, Triplets):
            return to_pairs(tuples)
        if self.joins_pairs and isinstance(tuples, Pairs):
            return join_pairs(tuples)
        accepted = accepted_tuples(type(self))
        if type(tuples) in accepted:
            return tuples
        named = " or ".join(kind.__name__.lower() for kind in accepted)
        advice = f"{named}, not {type(tuples).__name__.lower()}; choose another miner" if named else "no tuples"
        raise UsageError(f"{type(self).__name__} takes {advice}, or leave the miner out.", code="invalid-value")

    def extra_repr(self) -> str:
        """Return the constants by name; of a tensor its range."""
        values = ((name, getattr(self, name, None)) for name in inspect.signature(type(self)).parameters)
        return ", ".join(f"{name}={_short(value)}" for name, value in values if value is not None)


def _short(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    low, high = value.min().item(), value.max().item()
    return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def accepted_tuples(loss: type) -> list[type]:
    """Return the kinds of tuples that losses of a class take unchanged; for another library's all kinds."""
    if not issubclass(loss, MetricLoss):
        return [Pairs, Triplets]
    kinds: dict[type | None, list[type]] = {Pairs: [Pairs, Triplets], Quadruplets: [Quadruplets, Triplets]}
    return kinds.get(loss.tuples, [] if loss.tuples is None else [loss.tuples])


def unit_vectors(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return class vectors [..., d] as unit rows of the embeddings' dtype."""
    return normalize(vectors.to(rows.dtype), dim=-1)
