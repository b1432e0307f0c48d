"""rho-regularisation (Roth et al. 2020, Revisiting, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.functional import Pairs, Triplets, draw_columns, positive_mask
from training.miners.distance_weighted import DistanceWeighted
from zoo.errors import RecipeError


class Rho:
    """The tuples of another miner, in which with `probability` the negative is exchanged for the positive.

    Such a triplet (a, p, p) pushes samples of one class apart, against too strong a compression. The published code
    builds (a, a, p) instead, which also leaves the pull out: `published=True`. In the triplet and SNR losses, and in
    the contrastive loss below its negative margin, (a, p, p) is a constant without gradient: there only the published
    form pushes.

    A miner of pairs couples no negative with a positive. There the negative of a pair is exchanged for any other sample
    of the anchor's class, and with `published` each positive pair is left out with the same probability.
    """

    def __init__(
        self,
        probability: float,
        miner: Callable[[Tensor, Tensor], Triplets | Pairs] | None = None,
        published: bool = False,
    ) -> None:
        if not 0 <= probability <= 1:
            raise RecipeError(f"rho's probability lies in 0..1, not at {probability}.")
        self.probability, self.miner, self.published = probability, miner or DistanceWeighted(), published

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets | Pairs:
        """Tuples of unit embeddings [b, d], labels int64 [b], of the kind that the wrapped miner gives."""
        found = self.miner(embeddings, labels)
        return self._of_pairs(found, labels) if isinstance(found, Pairs) else self._of_triplets(found)

    def _of_triplets(self, triplets: Triplets) -> Triplets:
        anchors, positives, negatives = triplets
        exchanged = self._exchanged(anchors)
        first = torch.where(exchanged, anchors, positives) if self.published else positives
        return Triplets(anchors, first, torch.where(exchanged, positives, negatives))

    def _of_pairs(self, pairs: Pairs, labels: Tensor) -> Pairs:
        same = positive_mask(labels)
        exchanged = self._exchanged(pairs.anchors_n) & same.any(1)[pairs.anchors_n]
        negatives = pairs.negatives.clone()
        negatives[exchanged] = draw_columns(same, pairs.anchors_n[exchanged])
        anchors, positives = pairs.anchors_p, pairs.positives
        if self.published:
            kept = ~self._exchanged(anchors)
            anchors, positives = anchors[kept], positives[kept]
        return Pairs(anchors, positives, pairs.anchors_n, negatives)

    def _exchanged(self, tuples: Tensor) -> Tensor:
        return torch.rand(tuples.shape, device=tuples.device) < self.probability
