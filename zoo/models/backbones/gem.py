"""Generalised-mean pooling in place of another timm model's pooling (Radenovic et al. 2019, section 3.2)."""

from __future__ import annotations

from typing import Any

import timm
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

SMALLEST = 1e-6
"""Least value that is pooled: a power of 0 has no useful slope."""


class GeneralisedMean(nn.Module):
    """Pooling of maps [n, c, h, w] to [n, c]: the p-th root of the mean of p-th powers. 1 is the average."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        return maps.clamp(min=SMALLEST).pow(self.p).mean((2, 3)).pow(1 / self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def gem_network(
    architecture: str = "", p: float = 3.0, in_chans: int = 3, num_classes: int = 0, **args: Any
) -> nn.Module:
    """Return a timm model whose pooling is a generalised mean; its weights keep their names.

    Args:
        architecture: The name in timm.
        p: The exponent.
        in_chans: Channels of the images.
        num_classes: Must be 0, as there is no classifier.
        args: Arguments of the architecture.

    Raises:
        ValueError: If the model has another form of pooling, or the exponent is not positive.
    """
    if num_classes or p <= 0:
        raise ValueError(f"generalised-mean pooling takes a positive exponent and no classes, not {p}, {num_classes}")
    network: Any = timm.create_model(architecture, in_chans=in_chans, num_classes=0, **args)
    if not isinstance(getattr(network, "global_pool", None), SelectAdaptivePool2d):
        raise ValueError(f"{architecture} does not pool a map at its end, so it takes no generalised mean")
    network.global_pool = GeneralisedMean(p)
    return network


default_cfgs = generate_default_cfgs({"gem": {"url": "", "num_classes": 0, "first_conv": "", "classifier": ""}})


@register_model
def gem(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build `gem_network` from its keyword arguments."""
    network: nn.Module = build_model_with_cfg(gem_network, "gem", pretrained, **kwargs)
    return network
