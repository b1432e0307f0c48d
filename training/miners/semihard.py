"""Semihard negatives (Schroff et al. 2015, FaceNet, section 3.2), as in Roth et al. 2020, Revisiting, appendix A.2.

d_ap < d_an < d_ap + margin
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


class SemihardMiner:
    """One triplet per anchor: any positive and a semihard negative, or any negative if there is no semihard one.

    Args:
        margin: Width of the band of distances; 0.2 as in the triplet loss.
    """

    def __init__(self, margin: float = 0.2) -> None:
        self.margin = margin

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        partners = draw_columns(positives, anchors)
        distances, negatives = unit_distances(embeddings.detach().float())[anchors], negatives[anchors]
        semihard = negatives & semihard_mask(distances, distances.gather(1, partners[:, None]), self.margin)
        rows = torch.arange(len(anchors), device=labels.device)
        return Triplets(anchors, partners, draw_columns(fall_back(semihard, negatives), rows))


def semihard_mask(distances: Tensor, positive: Tensor, margin: float) -> Tensor:
    """Return bool [t, b]: where distances [t, b] exceed that of the row's positive, [t, 1], by less than the margin."""
    return (distances > positive) & (distances < positive + margin)
