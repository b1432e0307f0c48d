"""Recall@k surrogate (Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from training import functional
from training.functional import check_batch, positive_mask, products
from zoo.errors import RecipeError

CHUNK = 2**20
"""Comparisons that are held at a time."""


class RecallAtK(nn.Module):
    """1 - smooth recall at k, mean over the values of k and over queries that have a positive.

    A positive x of query q has the smooth rank 1 + sum_{z != q, x} sigmoid((s_qz - s_qx) / rank_temperature) in the
    rest of the batch, s: cosines. The recall at k is sum_x sigmoid((k - rank) / recall_temperature), at most k, over
    min(k, positives). Constants: k 1 to 16, temperatures 1 and 0.01; the authors' code has the recall temperature
    equal to k (give one for each k). (There the query ranks before its own positives: not copied.)
    """

    k: Tensor
    recall_temperature: Tensor

    def __init__(
        self,
        classes: int,
        k: Sequence[int] = (1, 2, 4, 8, 16),
        recall_temperature: float | Sequence[float] = 1.0,
        rank_temperature: float = 0.01,
    ) -> None:
        super().__init__()
        if isinstance(recall_temperature, Sequence) and len(recall_temperature) != len(k):
            raise RecipeError(f"recall_temperature is one number or one for each of the {len(k)} values of k.")
        self.rank_temperature = rank_temperature
        self.register_buffer("k", torch.tensor(k, dtype=torch.float32), persistent=False)
        self.register_buffer("recall_temperature", torch.tensor(recall_temperature), persistent=False)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of unit embeddings [b, d], labels int64 [b]. Memory O(b^2), time O(positive pairs * b)."""
        check_batch(embeddings, labels)
        positive = positive_mask(labels)
        queries, positives = positive.nonzero(as_tuple=True)
        similarities = products(embeddings).fill_diagonal_(-torch.inf)
        ranks = SmoothRanks.apply(similarities, queries, positives, self.rank_temperature)
        within = torch.sigmoid((self.k - ranks[:, None]) / self.recall_temperature)
        found = within.new_zeros(len(labels), len(self.k)).index_add(0, queries, within)
        relatives = positive.sum(1)
        recall = torch.minimum(found, self.k) / torch.minimum(relatives[:, None], self.k).clamp(min=1)
        return functional.masked_mean(1 - recall.mean(1), relatives > 0)


class SmoothRanks(torch.autograd.Function):
    """Smooth ranks [t] of items j in the rows i of similarities [b, b], compared in chunks, again when differentiated.

    rank = 1 + sum_{z != j} sigmoid((s_iz - s_ij) / temperature); an entry of -inf ranks before none.
    """

    @staticmethod
    def forward(ctx: Any, similarities: Tensor, i: Tensor, j: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(similarities, i, j)
        ctx.temperature = temperature
        ranks = similarities.new_empty(len(i))
        for part in _chunks(len(i), len(similarities)):
            # The comparison of j with itself, 1/2, is in the sum.
            ranks[part] = 0.5 + _wins(similarities, i[part], j[part], temperature).sum(1)
        return ranks

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        similarities, i, j = ctx.saved_tensors
        result = torch.zeros_like(similarities)
        for part in _chunks(len(i), len(similarities)):
            wins = _wins(similarities, i[part], j[part], ctx.temperature)
            slopes = wins * (1 - wins) * (grad[part] / ctx.temperature)[:, None]
            result.index_add_(0, i[part], slopes)
            result.index_put_((i[part], j[part]), -slopes.sum(1), accumulate=True)
        return result, None, None, None


def _wins(similarities: Tensor, i: Tensor, j: Tensor, temperature: float) -> Tensor:
    """[t, b]: how far each item of row i ranks before item j, 0..1."""
    return torch.sigmoid((similarities[i] - similarities[i, j][:, None]) / temperature)


def _chunks(rows: int, width: int) -> list[slice]:
    step = max(1, CHUNK // max(1, width))
    return [slice(start, start + step) for start in range(0, rows, step)]
