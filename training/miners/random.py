"""Random triplets, the baseline "(R)" of Roth et al. 2020, Revisiting, table 2."""

from __future__ import annotations

from torch import Tensor

from training.functional import Triplets, check_batch, draw_columns, negative_mask, positive_mask, rows_with_all


class RandomMiner:
    """One triplet per anchor: any positive, any negative."""

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Return triplets for labels int64 [b]; embeddings [b, d] are not used.

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        positives, negatives = positive_mask(labels), negative_mask(labels)
        anchors = rows_with_all(positives, negatives)
        return Triplets(anchors, draw_columns(positives, anchors), draw_columns(negatives, anchors))
