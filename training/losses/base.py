"""Bases of the losses: one call for all of them, that of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.batch import EmbeddingBatch, check_classes, join_pairs, read_batch, read_tuples
from training.functional import Hinges, Pairs, Quadruplets, Triplets, masked_mean, mean_norm, to_pairs
from training.pml import Parts, Terms, check_parts, own_or_none, reduced, sample_weights
from zoo.errors import UsageError


class MetricLoss(nn.Module):
    """A loss of embeddings with labels, called as `loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)`.

    A subclass defines `compute`, which gets checked values.

    Args:
        parts: Objects of pytorch-metric-learning, or such as its own. `distance`: between what embeddings are compared,
            if the loss can compare by others than its own. `reducer`: makes a number of the loss's terms.
            `embedding_regularizer`: is added, times `embedding_reg_weight`, 1 by default; it gets the embeddings as
            they come.

    Raises:
        UsageError: If the loss does not take such a part.

    Attributes:
        normalize_embeddings: Whether the loss scales embeddings to unit length itself.
        embeddings_are_scaled: Whether a caller has done this before; the loss then uses the embeddings unchanged.
        tuples: The kind of tuples that `compute` takes; None: it takes none.
        joins_pairs: Pairs become all their triplets, for a loss of triplets.
        weighs_samples: A loss without tuples weighs each sample by how often it is in mined ones.
        weighs_anchors: It counts how often a sample is an anchor, alone.
        compares_references: Whether the loss takes reference embeddings.
        takes_distance: Whether the loss can compare by another distance than its own.
        own_distance: Its own, as that library names it.
        num_classes: The number of classes that it has parameters for, or None.
        main_constant: The argument that trials vary: a margin, a scale, a temperature or a weight, of which every
            multiple is valid; "" without one.
        last_terms: The terms [x]+ of its last batch, in groups and without gradient, if it has such terms.
    """

    normalize_embeddings: bool = True
    embeddings_are_scaled = False
    tuples: type | None = None
    joins_pairs = False
    weighs_samples = False
    weighs_anchors = False
    compares_references = False
    takes_distance = False
    own_distance = ""
    num_classes: int | None = None
    main_constant = ""
    last_terms: tuple[Hinges, ...] = ()

    def __init__(self, **parts: Unpack[Parts]) -> None:
        super().__init__()
        check_parts(type(self), parts)
        self.distance = own_or_none(self, parts.get("distance"))
        self.reducer = parts.get("reducer")
        if self.reducer is not None and type(self).terms is MetricLoss.terms:
            raise UsageError(
                f"{type(self).__name__} has no terms to reduce; leave reducer out.", code="option-without-effect"
            )
        self.embedding_regularizer = parts.get("embedding_regularizer")
        self.embedding_reg_weight = parts.get("embedding_reg_weight", 1.0)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            embeddings: [b, d]; they are scaled to unit length, unless `normalize_embeddings` is false.
            labels: [b], of any integer type. A loss over tuples needs none if it gets these.
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
        if labels is None:
            labels, ref_labels = self._placeholders(embeddings, indices_tuple, ref_emb)
        unit = self.normalize_embeddings and not self.embeddings_are_scaled
        batch = read_batch(embeddings, labels, ref_emb, ref_labels, unit, self.distance)
        if self.num_classes is not None:
            check_classes(batch.labels, self.num_classes)
        tuples = None if indices_tuple is None else self._own_tuples(indices_tuple, len(batch.labels))
        penalties = self.penalties(batch, embeddings)
        if self.reducer is not None:
            value: Tensor = reduced(self.reducer, {**self.terms(batch, tuples), **penalties}, embeddings, batch.labels)
            return value
        return sum((penalty.values for penalty in penalties.values()), self.compute(batch, tuples))

    def compute(self, batch: EmbeddingBatch, tuples: Any) -> Tensor:
        """Return the loss, a scalar, of a batch and of tuples of the class's kind or None."""
        raise NotImplementedError

    def terms(self, batch: EmbeddingBatch, tuples: Any) -> dict[str, Terms]:
        """Return the terms of the loss by name, for a reducer."""
        raise NotImplementedError

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name."""
        if self.embedding_regularizer is None:
            return {}
        penalty = self.embedding_regularizer(embeddings) * self.embedding_reg_weight
        return {"embedding_reg_loss": Terms(penalty, None, "already_reduced")}

    def _placeholders(
        self, embeddings: Tensor, indices: Sequence[Tensor] | None, ref_emb: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return labels, which nothing reads, of the embeddings and of the references, for a loss over tuples."""
        if indices is None or self.tuples is None or self.num_classes is not None:
            raise UsageError(f"{type(self).__name__} needs labels.", code="missing-value")
        labels = torch.arange(len(embeddings), device=embeddings.device)
        return labels, None if ref_emb is None else torch.arange(len(ref_emb), device=embeddings.device)

    def _own_tuples(self, indices: Sequence[Tensor], samples: int) -> Triplets | Quadruplets | Pairs | Tensor | None:
        """Return the tuples as the kind that the loss takes, or as the weights of the samples."""
        tuples = indices if isinstance(indices, Quadruplets) else read_tuples(indices)
        if self.weighs_samples:
            return sample_weights(tuples, samples, self.weighs_anchors)
        if self.tuples is Pairs and isinstance(tuples, Triplets):
            return to_pairs(tuples)
        if self.joins_pairs and isinstance(tuples, Pairs):
            return join_pairs(tuples)
        accepted = accepted_tuples(type(self))
        if type(tuples) in accepted:
            return tuples
        named = " or ".join(kind.__name__.lower() for kind in accepted)
        mined = f"{named}, not {type(tuples).__name__.lower()}; choose another miner, or" if named else "no tuples;"
        raise UsageError(f"{type(self).__name__} takes {mined} leave the miner out.", code="invalid-value")

    def extra_repr(self) -> str:
        """Return the constants by name; of a tensor its range."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "parts"]
        values = ((name, getattr(self, name, None)) for name in names)
        return ", ".join(f"{name}={_short(value)}" for name, value in values if value is not None)


class ElementLoss(MetricLoss):
    """A loss that is the mean of one term per sample. A subclass defines `elements`."""

    def elements(self, batch: EmbeddingBatch, tuples: Any) -> tuple[Tensor, Tensor | None]:
        """Return the terms [b] and which of them count, bool [b], or None: all."""
        raise NotImplementedError

    def compute(self, batch: EmbeddingBatch, tuples: Any) -> Tensor:
        """Return the loss, a scalar: the mean of the terms that count."""
        values, counted = self._weighed(batch, tuples)
        return values.mean() if counted is None else masked_mean(values, counted)

    def terms(self, batch: EmbeddingBatch, tuples: Any) -> dict[str, Terms]:
        """Return the terms of the loss by name, for a reducer."""
        values, counted = self._weighed(batch, tuples)
        samples = torch.arange(len(values), device=values.device)
        if counted is not None:
            values, samples = values[counted], samples[counted]
        return {"loss": Terms(values, samples, "element")}

    def _weighed(self, batch: EmbeddingBatch, tuples: Any) -> tuple[Tensor, Tensor | None]:
        if not self.weighs_samples or tuples is None:
            return self.elements(batch, tuples)
        values, counted = self.elements(batch, None)
        return values * tuples.to(values.dtype), counted


def norm_penalty(batch: EmbeddingBatch, nu: float, squared: bool) -> dict[str, Terms]:
    """Return nu times the mean length of the rows, or the mean squared length, as a part of `penalties`."""
    return {"norm": Terms(nu * mean_norm(batch.rows, squared), None, "already_reduced")} if nu else {}


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
