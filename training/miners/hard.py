"""Hard triplets (Hermans et al. 2017, In Defense of the Triplet Loss for Person Re-Identification, eq. 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import Triplets, check_batch, negative_mask, positive_mask, rows_with_all, unit_distances


class Hard:
    """One triplet an anchor: its farthest positive and its nearest negative."""

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b]; none for anchors without a positive or a negative."""
        check_batch(embeddings, labels)
        distances = unit_distances(embeddings.detach().float())
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        farthest = distances.masked_fill(~positives, -torch.inf).argmax(1)
        nearest = distances.masked_fill(~negatives, torch.inf).argmin(1)
        return Triplets(anchors, farthest[anchors], nearest[anchors])
