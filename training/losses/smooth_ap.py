"""Smooth-AP (Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, eq. 7).

    L = mean_q 1 - AP_q,  AP_q = mean_i rank_P(q, i) / rank(q, i)
    rank(q, i) = 1 + sum_{z != q, i} sigmoid((s_qz - s_qi) / temperature)

i runs over the positives of the query q, z over the rest of the batch, and in rank_P over the other positives alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training import functional
from training.functional import check_batch, positive_mask
from training.losses.recall_at_k import smooth_ranks


class SmoothAPLoss(nn.Module):
    """One minus a smooth average precision, averaged over the queries that have a positive.

    Args:
        classes: Number of training classes; not used.
        temperature: 0.01 in the paper.
        query_counted: Rank the query itself and count it among its positives, as the authors' code does; every query
            then finds its best positive at once. The paper does not mention it.
    """

    def __init__(self, classes: int, temperature: float = 0.01, query_counted: bool = False) -> None:
        super().__init__()
        self.temperature, self.query_counted = temperature, query_counted

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Memory is O(b^2), time O(positive pairs * b).

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positive = positive_mask(labels)
        has_positive = positive.any(1)
        similarities = embeddings @ embeddings.T
        if self.query_counted:
            positive = positive | torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        else:
            similarities = similarities.fill_diagonal_(-torch.inf)
        queries, positives = positive.nonzero(as_tuple=True)
        among_positives = similarities.masked_fill(~positive, -torch.inf)
        ranks = smooth_ranks(similarities, queries, positives, self.temperature)
        precision = smooth_ranks(among_positives, queries, positives, self.temperature) / ranks
        total = precision.new_zeros(len(labels)).index_add(0, queries, precision)
        return functional.masked_mean(1 - total / positive.sum(1).clamp(min=1), has_positive)
