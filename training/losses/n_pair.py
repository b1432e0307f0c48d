"""N-pair loss (Sohn 2016, Improved Deep Metric Learning with Multi-class N-pair Loss Objective).

    L = mean_(a,p) log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)) + nu * mean |psi|^2

psi are embeddings: unit rows, or raw ones as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from training.batch import EmbeddingBatch, join_pairs, read_tuples
from training.functional import Pairs, Triplets, masked_logsumexp, to_pairs
from training.losses.base import MetricLoss, norm_penalty
from training.pml import Parts, Terms
from zoo.errors import RecipeError, UsageError, nearest

PAIRS = ("first", "random", "all")
"""Choices of the pairs of an anchor and a positive; see `NPairsLoss`."""


class NPairs(NamedTuple):
    """Anchors and positives, int64 [t], candidates, int64 [m], and which of these are of another class, bool [t, m]."""

    anchors: Tensor
    positives: Tensor
    candidates: Tensor
    negative: Tensor


class PairChoosingLoss(MetricLoss):
    """A loss of pairs of an anchor and a positive, each against several negatives.

    Args:
        pairs: Choice of the pairs, see `NPairsLoss`.
        mined_negatives: Mined triplets choose the negatives, too, and pairs become all their triplets. False: mined
            tuples choose pairs of an anchor and a positive, as in pytorch-metric-learning.
        parts: See `MetricLoss`.

    Raises:
        RecipeError: If the choice of pairs is unknown.
    """

    tuples = Triplets
    several_negatives = True
    """Triplets of one anchor and one positive are one term, of all their negatives."""

    def __init__(self, pairs: str, mined_negatives: bool, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        if pairs not in PAIRS:
            raise RecipeError(
                f"pairs is {pairs!r}; choose one of {', '.join(PAIRS)}.{nearest(pairs, PAIRS)}", code="unknown-name"
            )
        self.pairs, self.mined_negatives = pairs, mined_negatives

    def chosen(self, batch: EmbeddingBatch, tuples: Triplets | Pairs | None) -> NPairs:
        """Return the pairs of the tuples, or those of the batch."""
        if isinstance(tuples, Triplets):
            return join_triplets(tuples, len(batch.others))
        if tuples is None:
            return choose_pairs(batch, self.pairs)
        anchors, positives = tuples.anchors_p, tuples.positives
        if self.pairs != "first":
            return _against_all(batch, anchors, positives)
        first = _starts(batch.labels[anchors])
        return _against_one_another(batch.labels, anchors[first], positives[first])

    def _own_tuples(self, indices: Sequence[Tensor], samples: int) -> Triplets | Pairs:
        tuples = read_tuples(indices)
        if self.mined_negatives:
            return join_pairs(tuples) if isinstance(tuples, Pairs) else tuples
        return to_pairs(tuples) if isinstance(tuples, Triplets) else tuples

    def _placeholders(
        self, embeddings: Tensor, indices: Sequence[Tensor] | None, ref_emb: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        # Without mined negatives the labels tell which samples are negatives.
        return super()._placeholders(embeddings, indices if self.mined_negatives else None, ref_emb)


class NPairsLoss(PairChoosingLoss):
    """N-pair loss, with a weight also a penalty on the length of the embeddings.

    Args:
        nu: Weight of the penalty; 0.005 in Roth et al. 2020, Revisiting, appendix A.1.
        pairs: "first": one pair per class, its first two samples in the batch, whose negatives are the positives of the
            other pairs (Sohn 2016, section 3.2); of mined tuples the first of each class. "random": every sample with a
            random positive, against all samples of other classes (Revisiting, appendix A.1). "all": likewise with every
            positive.
        squared_norm: False penalises mean |psi|, as in the code published with Revisiting.
        normalize_embeddings: Scale embeddings to unit length; False in both papers.
        mined_negatives: See `PairChoosingLoss`.
        parts: See `MetricLoss`.

    Raises:
        RecipeError: If the choice of pairs is unknown.
    """

    main_constant = "nu"
    takes_distance = True

    def __init__(
        self,
        *,
        nu: float = 0.0,
        pairs: str = "first",
        squared_norm: bool = True,
        normalize_embeddings: bool = True,
        mined_negatives: bool = False,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(pairs, mined_negatives, **parts)
        self.nu, self.squared_norm = nu, squared_norm
        self.normalize_embeddings = normalize_embeddings

    def compute(self, batch: EmbeddingBatch, tuples: Triplets | Pairs | None) -> Tensor:
        """Return the loss, a scalar."""
        return mean_of_terms(self.terms(batch, tuples)["loss"].values)

    def terms(self, batch: EmbeddingBatch, tuples: Triplets | Pairs | None) -> dict[str, Terms]:
        """Return the terms of the pairs, for a reducer."""
        pairs = self.chosen(batch, tuples)
        return {"loss": Terms(n_pair_terms(batch, pairs), pairs.anchors, "element")}

    def penalties(self, batch: EmbeddingBatch, embeddings: Tensor) -> dict[str, Terms]:
        """Return what is added to the terms, by name: the penalty on the length, and those of regularizers."""
        return {**super().penalties(batch, embeddings), **norm_penalty(batch, self.nu, self.squared_norm)}


def choose_pairs(batch: EmbeddingBatch, choice: str) -> NPairs:
    """Return anchors and positives as `NPairsLoss` says, against the whole batch or the other positives."""
    labels, others = batch.labels, len(batch.others)
    if choice == "first":
        if not batch.compares_itself:
            raise UsageError("first pairs are those of a batch alone; leave ref_emb out.", code="option-without-effect")
        return _against_one_another(labels, *_first_pairs(labels))
    if choice == "all":
        anchors, positives = batch.positive.nonzero(as_tuple=True)
    else:
        (anchors,) = batch.positive.any(1).nonzero(as_tuple=True)
        # An extra row: multinomial refuses an empty matrix.
        weights = torch.cat([batch.positive[anchors].float(), torch.ones(1, others, device=labels.device)])
        positives = torch.multinomial(weights, 1).squeeze(1)[:-1]
    return _against_all(batch, anchors, positives)


def _against_all(batch: EmbeddingBatch, anchors: Tensor, positives: Tensor) -> NPairs:
    """Return pairs against all samples of other classes."""
    candidates = torch.arange(len(batch.others), device=anchors.device)
    return NPairs(anchors, positives, candidates, batch.negative[anchors])


def _against_one_another(labels: Tensor, anchors: Tensor, positives: Tensor) -> NPairs:
    """Return pairs against the positives of the pairs of other classes."""
    return NPairs(anchors, positives, positives, labels[anchors][:, None] != labels[positives])


def join_triplets(triplets: Triplets, batch: int) -> NPairs:
    """Return each pair of an anchor and a positive once, against the negatives of all its triplets."""
    keys, rows = (triplets.anchors * batch + triplets.positives).unique(return_inverse=True)
    negative = torch.zeros(len(keys), batch, dtype=torch.bool, device=keys.device)
    negative[rows, triplets.negatives] = True
    return NPairs(keys // batch, keys % batch, torch.arange(batch, device=keys.device), negative)


def _first_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the first and of the second sample of every class that has two, int64 [t] each."""
    ordered, rows = labels.sort(stable=True)
    follows = ordered[1:] == ordered[:-1]
    starts = torch.cat([torch.ones_like(follows[:1]), ~follows[:-1]])
    (first,) = (follows & starts).nonzero(as_tuple=True)
    return rows[first], rows[first + 1]


def _starts(labels: Tensor) -> Tensor:
    """Return the index of the first entry of every class, int64 [classes], in the order of the classes."""
    ordered, rows = labels.sort(stable=True)
    return rows[torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])]


def n_pair_terms(batch: EmbeddingBatch, pairs: NPairs) -> Tensor:
    """Return log(1 + sum_n exp(psi_a.psi_n - psi_a.psi_p)) of the pairs [t]."""
    if batch.distance is not None:
        similar = batch.cosines()[pairs.anchors]
        logits = similar[:, pairs.candidates] - similar.gather(1, pairs.positives[:, None])
    else:
        anchors, positives = batch.rows[pairs.anchors], batch.others[pairs.positives]
        logits = anchors @ batch.others[pairs.candidates].T - (anchors * positives).sum(1, keepdim=True)
    return log_one_plus(logits, pairs.negative)


def log_one_plus(logits: Tensor, negative: Tensor) -> Tensor:
    """Return log(1 + sum of exp(logits) over `negative`), both [t, m], of each row [t]."""
    return softplus(masked_logsumexp(logits, negative))


def mean_of_terms(values: Tensor) -> Tensor:
    """Return the mean of terms [t]; 0 without any."""
    return values.sum() / max(1, len(values))
