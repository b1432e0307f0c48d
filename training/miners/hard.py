"""Batch-hard triplets (Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification, eq. 5).

p = argmax_p d_ap,  n = argmin_n d_an
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Triplets, check_batch, negative_mask, positive_mask, rows_with_all, unit_distances


class BatchHardMiner:
    """One triplet per anchor: its farthest positive and its nearest negative."""

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        distances = unit_distances(embeddings.detach().float())
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        farthest = distances.masked_fill(~positives, -torch.inf).argmax(1)
        nearest = distances.masked_fill(~negatives, torch.inf).argmin(1)
        return Triplets(anchors, farthest[anchors], nearest[anchors])
