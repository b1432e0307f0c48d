"""The smallest method: one head or none, one loss, at most one miner."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from training.methods.method import Method
from training.minibatch import Minibatch
from training.tuples import Pairs, Triplets
from zoo.errors import RecipeError

Miner = Callable[[Tensor, Tensor], Triplets | Pairs]


class Plain(Method):
    """loss(head(features)) over the tuples that the miner finds, or over the whole batch without one.

    The loss gets unit embeddings unless it is defined on raw ones; the miner always gets unit embeddings. Without a
    head the pooled features are the embedding. The plain regularisers of Milbich, Roth et al. 2020, Sharing Matters,
    table 6: dropout, the share of features dropped before the head; input_noise and output_noise, the standard
    deviation of Gaussian noise on the normalised images and on the embeddings.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        miner: Miner | None = None,
        dropout: float = 0.0,
        input_noise: float = 0.0,
        output_noise: float = 0.0,
    ) -> None:
        super().__init__()
        if len(heads) > 1:
            raise RecipeError(f"the method 'plain' trains one head, not {len(heads)}; set heads to one.")
        if not 0 <= dropout < 1 or min(input_noise, output_noise) < 0:
            raise RecipeError("dropout is a share from 0 to below 1, and noise 0 or more.")
        self.heads, self.objective, self.miner = heads, loss, miner
        self.dropout, self.input_noise, self.output_noise = dropout, input_noise, output_noise

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        features = batch.features_of(self._noisy_images(batch)) if self.input_noise else batch.features
        if self.dropout:
            features = dropout(features, self.dropout)
        raw = next(iter(self.heads.values()))(features) if self.heads else features
        if self.output_noise:
            raw = raw + self.output_noise * torch.randn_like(raw)
        return {"loss": objective(self.objective, self.miner, raw, batch.labels)}

    def _noisy_images(self, batch: Minibatch) -> Tensor:
        """The noise is drawn for the whole batch, so that it is the same however the batch is spread."""
        images = batch.images
        noise = torch.randn(len(batch.labels), *images.shape[1:], device=images.device)
        return images + self.input_noise * noise[batch.part]


def objective(loss: nn.Module, miner: Miner | None, raw: Tensor, labels: Tensor) -> Tensor:
    """The loss of raw embeddings [b, d] over what the miner finds, on unit embeddings unless defined on raw ones."""
    unit = normalize(raw, dim=1)
    tuples = miner(unit.detach(), labels) if miner else None
    value: Tensor = loss(unit if getattr(loss, "normalised", True) else raw, labels, tuples)
    return value
