"""Manifold mixup (Verma et al. 2019) for embedding losses, as in Roth et al. 2020, Revisiting, appendix F."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from training.methods.base import Method, Miner, Minibatch, objective_loss
from zoo.errors import RecipeError, nearest


class Mixup(Method):
    """Activations of a random stage of the trunk are mixed with those of another image, and so are the losses.

    h_i <- lambda h_i + (1 - lambda) h_j with a random permutation j, lambda ~ Beta(alpha, alpha) and one stage for the
    batch. A mixed sample has two labels, and so two sets of tuples: lambda L(under labels y_i) + (1 - lambda)
    L(under labels y_j), each mined on its own. For softmax losses that is the usual mixed cross entropy.

    layers: names of the trunk's modules to choose from; by default the stages that timm names in `feature_info`. The
    appendix gives no alpha: 2 is what Verma et al. use for manifolds.

    Each process permutes its own n images, all in the same way, so that no activation travels: the batch's permutation
    is blocks of n. In one process it is any.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        trunk: nn.Module,
        miner: Miner | None = None,
        alpha: float = 2.0,
        layers: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if len(heads) > 1:
            raise RecipeError(f"the method 'mixup' trains one head, not {len(heads)}; set heads to one.")
        if alpha <= 0:
            raise RecipeError(f"mixup's alpha is above 0, not {alpha}.")
        self.heads, self.objective, self.miner, self.alpha = heads, loss, miner, alpha
        # Lists, so that the trunk's parameters are not registered a second time.
        self._trunk, self._stages = [trunk], find_stages(trunk, layers)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        share = Beta(self.alpha, self.alpha).sample().item()
        order = torch.randperm(len(batch.images)).to(batch.images.device)
        stage = self._stages[int(torch.randint(len(self._stages), ()))]
        features = batch.features_of(batch.images, MixedTrunk(self._trunk[0], stage, order, share))
        raw = next(iter(self.heads.values()))(features) if self.heads else features
        partners = batch.labels.reshape(-1, len(order))[:, order].flatten()
        return {
            "own": share * objective_loss(self.objective, self.miner, raw, batch.labels),
            "partner": (1 - share) * objective_loss(self.objective, self.miner, raw, partners),
        }


def find_stages(trunk: nn.Module, layers: Sequence[str] | None = None) -> list[nn.Module]:
    """The trunk's modules of these names, or those of its timm `feature_info`. Raises `RecipeError` for others."""
    modules = dict(trunk.named_modules())
    names = [stage["module"] for stage in getattr(trunk, "feature_info", [])] if layers is None else list(layers)
    for name in names:
        if name not in modules or not name:
            raise RecipeError(f"the trunk has no layer {name!r}.{nearest(name, modules)}")
    if not names:
        raise RecipeError("mixup does not know this trunk's stages; name some in objective.method_args.layers.")
    return [modules[name] for name in names]


class MixedTrunk(nn.Module):
    """The trunk with the output of one of its stages mixed, for images [n, ...] and order int64 [n].

    A module of its own, so that a forward pass that is made again for its gradients is mixed again.
    """

    def __init__(self, trunk: nn.Module, stage: nn.Module, order: Tensor, share: float) -> None:
        super().__init__()
        self.trunk, self.stage, self.order, self.share = trunk, stage, order, share

    def forward(self, images: Tensor) -> Tensor:
        if len(images) != len(self.order):
            raise RecipeError("mixup needs all images of a process in one forward pass; set batch.chunk to 0.")
        with mix_activations(self.stage, self.order, self.share):
            features: Tensor = self.trunk(images)
        return features


@contextmanager
def mix_activations(stage: nn.Module, order: Tensor, share: float) -> Iterator[None]:
    """While it lasts, the stage's output h [n, ...] is share * h + (1 - share) * h[order]; order int64 [n]."""

    def mix(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or len(output) != len(order):
            raise RecipeError(
                f"mixup needs layers that give one activation an image; {type(module).__name__} does not."
            )
        return share * output + (1 - share) * output[order]

    hook = stage.register_forward_hook(mix)
    try:
        yield
    finally:
        hook.remove()
