"""Low-rank adapters of a trunk's linear layers (Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models).

A weight W [out, in] becomes W + scale * B A with A [rank, in] and B [out, rank], and only A and B learn (section 4.1).
B starts at zero, so that the adapted trunk starts as the trunk. Merging stores the sum as an ordinary weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from zoo.errors import RecipeError

SCALE = 2.0
"""The factor alpha / rank, with alpha twice the rank as is usual."""


class LowRank(nn.Module):
    """Adapter of a weight [out, in]: adds `SCALE` * up @ down.

    It parametrises the weight instead of wrapping the layer, because some architectures read `layer.weight` without
    calling the layer (BEiT's qkv, torch's multi-head attention) and would ignore a wrapper.

    Args:
        weight: The weight to adapt.
        rank: The number of directions that are learnt.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, inputs))
        self.up = nn.Parameter(weight.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as the authors' code

    def forward(self, weight: Tensor) -> Tensor:
        return weight + SCALE * (self.up @ self.down)


def _adapted_layers(trunk: nn.Module) -> list[nn.Linear]:
    """Return the layers that adapters are for: the linear ones, which in a ViT are those of attention and MLPs."""
    return [module for module in trunk.modules() if isinstance(module, nn.Linear)]


def add_adapters(trunk: nn.Module, rank: int) -> None:
    """Freeze a trunk and give each of its linear layers an adapter.

    Args:
        trunk: The trunk, which is changed.
        rank: The rank of the adapters; a layer with fewer inputs or outputs gets one of that rank.

    Raises:
        RecipeError: `unsupported-model` for a trunk of convolutions.
    """
    layers = _adapted_layers(trunk)
    if not layers:
        raise RecipeError(
            f"{type(trunk).__name__} has no linear layers for low-rank adapters, which are for vision transformers. "
            "Train its last stage instead (zoo finetune DIR --from MODEL --tune last, or --set backbone.tune=last).",
            code="unsupported-model",
        )
    trunk.requires_grad_(False)
    for layer in layers:
        adapter = LowRank(layer.weight, min(rank, *layer.weight.shape))
        parametrize.register_parametrization(layer, "weight", adapter)


@torch.no_grad()
def merge_adapters(module: nn.Module) -> None:
    """Store each adapted weight as an ordinary one, so that the parameters have their names again."""
    for layer in _adapted_layers(module):
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
