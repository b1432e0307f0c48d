"""Recall@k surrogate (Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup).

    L = mean_q mean_k 1 - min(k, sum_x sigmoid((k - rank_qx) / recall_temperature)) / min(k, positives of q)
    rank_qx = 1 + sum_{z != q, x} sigmoid((s_qz - s_qx) / rank_temperature)

x runs over the positives of the query q and z over the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from training import functional
from training.batch import EmbeddingBatch
from training.losses.base import MetricLoss
from zoo.errors import RecipeError

CHUNK = 2**20
"""Largest number of comparisons that are held in memory."""


class RecallAtKLoss(MetricLoss):
    """One minus a smooth recall at k, averaged over the values of k and over the queries that have a positive.

    In the authors' code the query ranks before its own positives; this is not copied.

    Args:
        k: Ranks; 1 to 16 in the paper.
        recall_temperature: One number, 1 in the paper, or one per k; in the authors' code it equals k.
        rank_temperature: 0.01 in the paper.

    Raises:
        RecipeError: If there are not as many recall temperatures as values of k.
    """

    main_constant = "rank_temperature"
    k: Tensor
    recall_temperature: Tensor

    def __init__(
        self,
        k: Sequence[int] = (1, 2, 4, 8, 16),
        recall_temperature: float | Sequence[float] = 1.0,
        rank_temperature: float = 0.01,
    ) -> None:
        super().__init__()
        if isinstance(recall_temperature, Sequence) and len(recall_temperature) != len(k):
            raise RecipeError(
                f"recall_temperature has {len(recall_temperature)} values for {len(k)} values of k; give one number, "
                "or one for each k.",
                code="invalid-value",
            )
        self.rank_temperature = rank_temperature
        self.register_buffer("k", torch.tensor(k, dtype=torch.float32), persistent=False)
        self.register_buffer("recall_temperature", torch.tensor(recall_temperature), persistent=False)

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar. Memory is O(b^2), time O(positive pairs * b)."""
        positive, labels = batch.positive, batch.labels
        queries, positives = positive.nonzero(as_tuple=True)
        similarities = batch.cosines().fill_diagonal_(-torch.inf)
        ranks = smooth_ranks(similarities, queries, positives, self.rank_temperature)
        within = torch.sigmoid((self.k - ranks[:, None]) / self.recall_temperature)
        recalled = within.new_zeros(len(labels), len(self.k)).index_add(0, queries, within)
        positives_of_query = positive.sum(1)
        recall = torch.minimum(recalled, self.k) / torch.minimum(positives_of_query[:, None], self.k).clamp(min=1)
        return functional.masked_mean(1 - recall.mean(1), positives_of_query > 0)


def smooth_ranks(similarities: Tensor, i: Tensor, j: Tensor, temperature: float) -> Tensor:
    """Return smooth ranks [t] of items j in the rows i of similarities [b, b].

    rank = 1 + sum_{z != j} sigmoid((s_iz - s_ij) / temperature). An entry of -inf ranks last. Items are compared in
    chunks, and again for the gradient, so that memory is O(b^2).
    """
    parts = _chunks(len(i), len(similarities))
    again = partial(checkpoint, _ranks, similarities, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(i[part], j[part], temperature) for part in parts])


def _ranks(similarities: Tensor, i: Tensor, j: Tensor, temperature: float) -> Tensor:
    wins = torch.sigmoid((similarities[i] - similarities[i, j][:, None]) / temperature)
    return 0.5 + wins.sum(1)  # the sum contains the comparison of j with itself, which is 1/2


def _chunks(rows: int, width: int) -> list[slice]:
    """Return slices of the rows such that at most CHUNK numbers are compared at a time."""
    step = max(1, CHUNK // max(1, width))
    return [slice(start, start + step) for start in range(0, max(1, rows), step)]
