"""Smooth-AP (Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, eq. 7).

    L = mean_q 1 - AP_q,  AP_q = mean_i rank_P(q, i) / rank(q, i)
    rank(q, i) = 1 + sum_{z != q, i} sigmoid((s_qz - s_qi) / temperature)

i runs over the positives of the query q, z over the rest of the batch, and in rank_P over the other positives alone.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from training.batch import EmbeddingBatch
from training.losses.base import ElementLoss
from training.losses.recall_at_k import smooth_ranks
from training.pml import Parts


class SmoothAPLoss(ElementLoss):
    """One minus a smooth average precision, averaged over the queries that have a positive.

    Args:
        temperature: 0.01 in the paper.
        query_counted: Rank the query itself and count it among its positives, as the authors' code does; every query
            then finds its best positive at once. The paper does not mention it.
        parts: See `MetricLoss`.
    """

    main_constant = "temperature"
    own_distance = "CosineSimilarity(power=1)"
    weighs_samples = True

    def __init__(self, temperature: float = 0.01, *, query_counted: bool = True, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        self.temperature, self.query_counted = temperature, query_counted

    def elements(self, batch: EmbeddingBatch, tuples: None) -> tuple[Tensor, Tensor]:
        """Return the terms [b] and which of them count. Memory is O(b^2), time O(positive pairs * b)."""
        positive, labels, similarities = batch.positive, batch.labels, batch.cosines()
        has_positive = positive.any(1)
        if self.query_counted:
            positive = positive | torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        else:
            similarities = similarities.fill_diagonal_(-torch.inf)
        queries, positives = positive.nonzero(as_tuple=True)
        among_positives = similarities.masked_fill(~positive, -torch.inf)
        ranks = smooth_ranks(similarities, queries, positives, self.temperature)
        precision = smooth_ranks(among_positives, queries, positives, self.temperature) / ranks
        total = precision.new_zeros(len(labels)).index_add(0, queries, precision)
        return 1 - total / positive.sum(1).clamp(min=1), has_positive
