"""Vision transformers of timm with learnt prompts (Jia et al. 2022, Visual Prompt Tuning).

The prompts are further tokens between the prefix (class and register tokens) and the patches, without position. Shallow
prompts enter the first block and pass through all; deep ones are replaced before every block by its own (section 3.2).
They leave before the final norm, so that pooling sees prefix and patches alone.
"""

from __future__ import annotations

import math
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

NAME = "prompted"
"""The architecture's name; its arguments are those of the transformer and `architecture`, `prompts`, `deep`."""


class PromptedBlocks(nn.Sequential):
    """Blocks of a transformer, in whose tokens [n, t, d] the parameter `prompts` [layers, p, d] takes part.

    Args:
        blocks: The blocks.
        prompts: The prompts of each block, or of the first alone.
        prefix: Number of tokens before the patches.
    """

    def __init__(self, blocks: nn.Sequential, prompts: Tensor, prefix: int) -> None:
        super().__init__(*blocks)
        self.prompts = nn.Parameter(prompts)
        self.prefix = prefix

    def forward(self, x: Tensor) -> Tensor:
        end = self.prefix
        for layer, block in enumerate(self):
            if layer < len(self.prompts):
                own = self.prompts[layer].expand(x.shape[0], -1, -1).to(x.dtype)
                x = torch.cat([x[:, : self.prefix], own, x[:, end:]], dim=1)
                end = self.prefix + own.shape[1]
            x = block(x)
        return torch.cat([x[:, : self.prefix], x[:, end:]], dim=1)


def add_prompts(network: nn.Module, count: int, deep: bool) -> PromptedBlocks:
    """Give a vision transformer prompts, which start uniform as in the authors' code; return its blocks.

    Args:
        network: The transformer, which is changed.
        count: Prompts per block.
        deep: Prompts of every block; otherwise of the first.

    Raises:
        ValueError: If the network is not timm's plain vision transformer, or has prompts, or the count is below 1.
    """
    known = isinstance(network, VisionTransformer) and type(network).forward_features is _FORWARD
    if not known or isinstance(network.blocks, PromptedBlocks):
        raise ValueError(f"{type(network).__name__} is not a plain vision transformer without prompts")
    if count < 1:
        raise ValueError(f"a transformer takes 1 prompt or more, not {count}")
    assert isinstance(network, VisionTransformer)
    patch = math.prod(network.patch_embed.patch_size)
    bound = math.sqrt(6 / (3 * patch + network.embed_dim))
    prompts = torch.empty(len(network.blocks) if deep else 1, count, network.embed_dim).uniform_(-bound, bound)
    blocks = PromptedBlocks(network.blocks, prompts, network.num_prefix_tokens)
    network.blocks = blocks
    return blocks


_FORWARD = VisionTransformer.forward_features


def prompted_network(
    architecture: str = "",
    prompts: int = 10,
    deep: bool = True,
    in_chans: int = 3,
    num_classes: int = 0,
    **args: Any,
) -> nn.Module:
    """Return a vision transformer of timm with prompts; its other weights keep their names.

    Args:
        architecture: The name in timm.
        prompts: Prompts per block.
        deep: Prompts of every block; otherwise of the first.
        in_chans: Channels of the images.
        num_classes: Must be 0, as there is no classifier.
        args: Arguments of the architecture.

    Raises:
        ValueError: What `add_prompts` raises, and for a number of classes.
    """
    if num_classes:
        raise ValueError(f"a prompted transformer has no classifier, so it takes no {num_classes} classes")
    network = timm.create_model(architecture, in_chans=in_chans, num_classes=0, **args)
    add_prompts(network, prompts, deep)
    return network


default_cfgs = generate_default_cfgs({NAME: {"url": "", "num_classes": 0, "first_conv": "", "classifier": ""}})


@register_model
def prompted(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build `prompted_network` from its keyword arguments."""
    network: nn.Module = build_model_with_cfg(prompted_network, NAME, pretrained, **kwargs)
    return network
