"""S2SD (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning).

    L = (loss(head) + mean_k loss(head_k)) / 2 + gamma * mean_k KL_k + features_gamma * KL_features

KL_k is the divergence of the head's similarities from those of auxiliary head k, KL_features from those of the pooled
features; neither gets a gradient from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from training.functional import similarity_divergence
from training.methods.base import Method, Miner, Minibatch, embed, objective_loss
from zoo.errors import RecipeError


class S2SD(Method):
    """Self-distillation: the published head learns from wider auxiliary heads that are trained with it and then
    dropped.

    An auxiliary head is two linear maps with a ReLU between. Each embedding is mined on its own.

    Args:
        heads: One head.
        loss: The recipe's loss.
        create_loss: Function of a dimension that returns another instance of it.
        features: Number of pooled features.
        miner: The recipe's miner.
        dims: Dimensions of the auxiliary heads.
        gamma: Weight of the divergence from the auxiliary heads; 50 in the published code.
        temperature: That of the similarities; 1 in the published code.
        warmup: First epoch of that divergence; 0 in the published code.
        features_gamma: Weight of the divergence from the features (the paper's MSDF), 0 for none; 50 in the published
            code.
        features_warmup: First epoch of that divergence; after 1000 steps in the published code.

    Raises:
        RecipeError: If the number of heads does not fit, or a number is out of range.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        create_loss: Callable[[int], nn.Module],
        features: int,
        miner: Miner | None = None,
        dims: Sequence[int] = (512, 1024, 1536, 2048),
        gamma: float = 50.0,
        temperature: float = 1.0,
        warmup: int = 0,
        features_gamma: float = 0.0,
        features_warmup: int = 1,
    ) -> None:
        super().__init__()
        if len(heads) != 1:
            raise RecipeError(
                f"the method 's2sd' trains one head, and the recipe has {len(heads)}; set heads to one.",
                code="conflicting-settings",
            )
        if not dims or min(dims) < 1 or min(gamma, features_gamma, warmup, features_warmup) < 0 or temperature <= 0:
            raise RecipeError(
                f"the method 's2sd' got dims {list(dims)}, gamma {gamma}, features_gamma {features_gamma}, warmup "
                f"{warmup}, features_warmup {features_warmup} and temperature {temperature}; it needs at least one "
                "dimension, all of 1 or more, weights and warm-ups of 0 or more, and a temperature above 0.",
                code="invalid-value",
            )
        self.heads, self.objective, self.miner = heads, loss, miner
        self.auxiliary = nn.ModuleList(_two_layers(features, dim) for dim in dims)
        self.auxiliary_objectives = nn.ModuleList(create_loss(dim) for dim in dims)
        self.gamma, self.temperature, self.warmup = gamma, temperature, warmup
        self.features_gamma, self.features_warmup = features_gamma, features_warmup

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return `loss` and `auxiliary`, and after their warm-ups `distillation` and `features`."""
        raw = embed(self.heads, batch.features)
        wide = [head(batch.features) for head in self.auxiliary]
        losses = [
            objective_loss(loss, self.miner, rows, batch.labels)
            for loss, rows in zip(self.auxiliary_objectives, wide, strict=True)
        ]
        terms = {
            "loss": objective_loss(self.objective, self.miner, raw, batch.labels) / 2,
            "auxiliary": torch.stack(losses).mean() / 2,
        }
        if self.gamma and batch.epoch >= self.warmup:
            divergences = [similarity_divergence(raw, rows, self.temperature) for rows in wide]
            terms["distillation"] = self.gamma * torch.stack(divergences).mean()
        if self.features_gamma and batch.epoch >= self.features_warmup:
            terms["features"] = self.features_gamma * similarity_divergence(raw, batch.features, self.temperature)
        return terms


def _two_layers(features: int, dim: int) -> nn.Sequential:
    """Return a map from features to `dim` numbers with one hidden layer of the same width."""
    return nn.Sequential(nn.Linear(features, dim), nn.ReLU(), nn.Linear(dim, dim))
