"""Manifold mixup (Verma et al. 2019) for embedding losses, as in Roth et al. 2020, Revisiting, appendix F.

    h_i <- lambda h_i + (1 - lambda) h_j,  L = lambda L(labels y_i) + (1 - lambda) L(labels y_j)

j is a random permutation, lambda ~ Beta(alpha, alpha), and h the output of a random stage of the trunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Beta

from training.methods.base import Method, Miner, Minibatch, embed, objective_loss, require_at_most_one_head
from zoo.errors import RecipeError, nearest


class Mixup(Method):
    """Mixed activations of a random stage of the trunk, and the equally mixed loss of both labels.

    A mixed sample has two labels and thus two sets of tuples, each mined on its own. For softmax losses this is the
    usual mixed cross entropy. Each process permutes its own n images, all processes in the same way, so that no
    activation is sent; the permutation of the batch consists of blocks of n.

    Args:
        heads: No head, or one.
        loss: The recipe's loss.
        trunk: The trunk.
        miner: The recipe's miner.
        alpha: That of the Beta distribution. The appendix gives no value; Verma et al. use 2 for manifolds.
        layers: Names of the trunk's modules to choose from; the default is the stages in timm's `feature_info`.

    Raises:
        RecipeError: If there are several heads, alpha is not positive, or a layer is unknown.
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
        require_at_most_one_head(heads, "mixup")
        if alpha <= 0:
            raise RecipeError(f"the alpha of mixup is {alpha}; it must be above 0.", code="invalid-value")
        self.heads, self.objective, self.miner, self.alpha = heads, loss, miner, alpha
        # In lists, because the trunk's parameters must not be registered a second time.
        self._trunk, self._stages = [trunk], find_stages(trunk, layers)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the terms `own` and `partner`."""
        share = Beta(self.alpha, self.alpha).sample().item()
        order = torch.randperm(len(batch.images)).to(batch.images.device)
        stage = self._stages[int(torch.randint(len(self._stages), ()))]
        features = batch.features_of(batch.images, MixedTrunk(self._trunk[0], stage, order, share))
        raw = embed(self.heads, features)
        partners = batch.labels.reshape(-1, len(order))[:, order].flatten()
        return {
            "own": share * objective_loss(self.objective, self.miner, raw, batch.labels),
            "partner": (1 - share) * objective_loss(self.objective, self.miner, raw, partners),
        }


def find_stages(trunk: nn.Module, layers: Sequence[str] | None = None) -> list[nn.Module]:
    """Return the trunk's modules of these names, or those in timm's `feature_info`.

    Raises:
        RecipeError: If the trunk lacks a name, or there are no names.
    """
    modules = dict(trunk.named_modules())
    names = [stage["module"] for stage in getattr(trunk, "feature_info", [])] if layers is None else list(layers)
    for name in names:
        if name not in modules or not name:
            raise RecipeError(f"the trunk has no layer {name!r}.{nearest(name, modules)}", code="unknown-name")
    if not names:
        raise RecipeError(
            "the trunk does not name its stages; name layers for mixup in objective.method_args.layers.",
            code="unsupported-model",
        )
    return [modules[name] for name in names]


class MixedTrunk(nn.Module):
    """The trunk with the output of one stage mixed, for images [n, ...] and order int64 [n].

    It is a module, so that a forward pass that is repeated for its gradients is mixed again.
    """

    def __init__(self, trunk: nn.Module, stage: nn.Module, order: Tensor, share: float) -> None:
        super().__init__()
        self.trunk, self.stage, self.order, self.share = trunk, stage, order, share

    def forward(self, images: Tensor) -> Tensor:
        """Return the trunk's features of mixed images [n, c, h, w].

        Raises:
            RecipeError: If the number of images is not that of `order`.
        """
        if len(images) != len(self.order):
            raise RecipeError(
                f"mixup needs all {len(self.order)} images of a process in one forward pass, not {len(images)}; set "
                "batch.chunk to 0.",
                code="conflicting-settings",
            )
        with mix_activations(self.stage, self.order, self.share):
            features: Tensor = self.trunk(images)
        return features


@contextmanager
def mix_activations(stage: nn.Module, order: Tensor, share: float) -> Iterator[None]:
    """Replace the stage's output h [n, ...] by share * h + (1 - share) * h[order] while the context is active.

    Args:
        stage: a module of the trunk.
        order: int64 [n].
        share: From 0 to 1.

    Raises:
        RecipeError: If, in the forward pass, the stage's output is not a tensor with one row per image.
    """

    def mix(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor) or len(output) != len(order):
            raise RecipeError(
                f"mixup needs layers with one activation per image; the output of {type(module).__name__} is "
                "different.",
                code="unsupported-model",
            )
        return share * output + (1 - share) * output[order]

    hook = stage.register_forward_hook(mix)
    try:
        yield
    finally:
        hook.remove()
