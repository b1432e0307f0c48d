"""rho-regularisation (Roth et al. 2020, Revisiting, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from training.miners.distance_weighted import DistanceWeighted
from training.tuples import Triplets
from zoo.errors import RecipeError


class Rho:
    """The triplets of another miner, in which with `probability` the negative is exchanged for the positive.

    Such a triplet (a, p, p) pushes samples of one class apart, against too strong a compression. The published code
    builds (a, a, p) instead, which also leaves the pull out: `published=True`. In the triplet and SNR losses, and in
    the contrastive loss below its negative margin, (a, p, p) is a constant without gradient: there only the published
    form pushes.
    """

    def __init__(
        self,
        probability: float,
        miner: Callable[[Tensor, Tensor], Triplets] | None = None,
        published: bool = False,
    ) -> None:
        if not 0 <= probability <= 1:
            raise RecipeError(f"rho's probability lies in 0..1, not at {probability}.")
        self.probability, self.miner, self.published = probability, miner or DistanceWeighted(), published

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Triplets of unit embeddings [b, d], labels int64 [b], as many as the wrapped miner finds."""
        anchors, positives, negatives = self.miner(embeddings, labels)
        exchanged = torch.rand(anchors.shape, device=anchors.device) < self.probability
        first = torch.where(exchanged, anchors, positives) if self.published else positives
        return Triplets(anchors, first, torch.where(exchanged, positives, negatives))
