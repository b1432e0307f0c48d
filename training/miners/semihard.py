"""Semihard negatives (Schroff et al. 2015, FaceNet, section 3.2), as in Roth et al. 2020, Revisiting, section 3."""

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


class Semihard:
    """One triplet an anchor: any positive, and a negative with d_ap < d_an < d_ap + margin, or any if there is none."""

    def __init__(self, margin: float = 0.2) -> None:
        self.margin = margin

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b]; none for anchors without a positive or a negative."""
        check_batch(embeddings, labels)
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        chosen = draw_columns(positives, anchors)
        distances, negatives = unit_distances(embeddings.detach().float())[anchors], negatives[anchors]
        semihard = negatives & semihard_mask(distances, distances.gather(1, chosen[:, None]), self.margin)
        rows = torch.arange(len(anchors), device=labels.device)
        return Triplets(anchors, chosen, draw_columns(fall_back(semihard, negatives), rows))


def semihard_mask(distances: Tensor, positive: Tensor, margin: float) -> Tensor:
    """bool [t, b]: where distances [t, b] lie above that of the row's positive, [t, 1], by less than the margin."""
    return (distances > positive) & (distances < positive + margin)
