"""Softhard triplets, "(H)" in the published code of Roth et al. 2020, Revisiting (Roth & Brattoli 2019).

d_ap > min_n d_an,  d_an < max_p d_ap
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.functional import (
    Triplets,
    check_batch,
    draw_columns,
    fall_back,
    negative_mask,
    positive_mask,
    rows_with_all,
    unit_distances,
)


class SofthardMiner:
    """One triplet per anchor: a positive beyond the nearest negative and a negative nearer than the farthest positive.

    Both are drawn evenly among these, or among all without such a sample.
    """

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        distances = unit_distances(embeddings.detach().float())
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        farthest = distances.masked_fill(~positives, -torch.inf).amax(1, keepdim=True)
        nearest = distances.masked_fill(~negatives, torch.inf).amin(1, keepdim=True)
        hard_positives = fall_back(positives & (distances > nearest), positives)
        hard_negatives = fall_back(negatives & (distances < farthest), negatives)
        return Triplets(anchors, draw_columns(hard_positives, anchors), draw_columns(hard_negatives, anchors))
