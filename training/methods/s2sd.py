"""S2SD (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from training.divergence import divergence
from training.methods.base import Method, Miner, Minibatch, objective
from zoo.errors import RecipeError


class S2SD(Method):
    """The published head learns from wider auxiliary heads, which are trained beside it and left behind.

    (L + mean_k L_k) / 2 + gamma * mean_k KL_k. L: the recipe's loss on the head; L_k: another instance of it on
    auxiliary head k, two linear maps to `dims[k]` with a ReLU between; KL_k: the divergence of the head's similarities
    from those of the auxiliary head, which get no gradient from it. Each embedding is mined on its own.

    features_gamma: weight of the same divergence from the pooled features (the paper's MSDF), from epoch
    `features_warmup` on; 0: none. warmup: the epoch from which the auxiliary heads are distilled. Constants of the
    published code: gamma 50 both times, temperature 1, and a start of the features after 1000 steps; the auxiliary
    heads are distilled from the start.
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
            raise RecipeError(f"the method 's2sd' trains one head, not {len(heads)}; set heads to one.")
        if not dims or min(dims) < 1 or min(gamma, features_gamma, warmup, features_warmup) < 0 or temperature <= 0:
            raise RecipeError(
                "s2sd needs at least one dimension, all of 1 or more, weights and warm-ups of 0 or more and a "
                f"temperature above 0; not dims {list(dims)}, gamma {gamma}, features_gamma {features_gamma}, warmup "
                f"{warmup}, features_warmup {features_warmup}, temperature {temperature}."
            )
        self.heads, self.objective, self.miner = heads, loss, miner
        self.auxiliary = nn.ModuleList(two_layers(features, dim) for dim in dims)
        self.auxiliary_objectives = nn.ModuleList(create_loss(dim) for dim in dims)
        self.gamma, self.temperature, self.warmup = gamma, temperature, warmup
        self.features_gamma, self.features_warmup = features_gamma, features_warmup

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = next(iter(self.heads.values()))(batch.features)
        wide = [head(batch.features) for head in self.auxiliary]
        losses = [
            objective(loss, self.miner, rows, batch.labels)
            for loss, rows in zip(self.auxiliary_objectives, wide, strict=True)
        ]
        terms = {
            "loss": objective(self.objective, self.miner, raw, batch.labels) / 2,
            "auxiliary": torch.stack(losses).mean() / 2,
        }
        if self.gamma and batch.epoch >= self.warmup:
            divergences = [divergence(raw, rows, self.temperature) for rows in wide]
            terms["distillation"] = self.gamma * torch.stack(divergences).mean()
        if self.features_gamma and batch.epoch >= self.features_warmup:
            terms["features"] = self.features_gamma * divergence(raw, batch.features, self.temperature)
        return terms


def two_layers(features: int, dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, dim), nn.ReLU(), nn.Linear(dim, dim))
