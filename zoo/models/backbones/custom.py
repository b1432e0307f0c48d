"""Networks of the user as a timm model: a trunk, or a head behind any trunk, which the card names as "module:Class".

A card may come from a stranger, and a class that it names runs code. So these models are only built for recipes of the
user and for folders of the local zoo (`trusted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from zoo.models.places import CUSTOM, build, is_place, untrusted

_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trusted(is_trusted: bool) -> Iterator[None]:
    """Let classes of the user be imported and built in the block, or not."""
    token = _TRUSTED.set(is_trusted)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


class CustomNetwork(nn.Module):
    """A trunk and a head, at least one of which is a class of the user.

    Maps normalised images [n, in_chans, h, w] to features [n, num_features], which are the embedding.

    Args:
        trunk: The trunk: "module:Class", whose constructor gets `in_chans` if it names that, or a name of timm.
        trunk_args: Its arguments.
        head: "module:Class", or "" for none. Its constructor gets the number of the trunk's features and the dimension
            of the embedding under the usual names that it has: `in_features`, `num_features` or `features`, and
            `embedding_size`, `out_features` or `dim`.
        head_args: Its arguments.
        dim: The dimension of the embedding that a head is asked for.
        size: The side in pixels of images, on which the number of features is measured.
        in_chans: Channels of the images.
        num_classes: Must be 0, as there is no classifier.

    Raises:
        ModelFolderError: `unsafe-file` outside `trusted`.
        ValueError: If the trunk or the head does not give one vector per image.
    """

    def __init__(
        self,
        trunk: str,
        trunk_args: Mapping[str, Any] | None = None,
        head: str = "",
        head_args: Mapping[str, Any] | None = None,
        dim: int = 0,
        size: int = 224,
        in_chans: int = 3,
        num_classes: int = 0,
    ) -> None:
        super().__init__()
        if num_classes:
            raise ValueError("a network of the user has no classifier")
        if not _TRUSTED.get():
            raise untrusted((trunk, head))
        self.in_chans, args = in_chans, dict(trunk_args or {})
        self.trunk: nn.Module
        if is_place(trunk):
            self.trunk = build(trunk, args, {"in_chans": in_chans})
        else:
            self.trunk = timm.create_model(trunk, num_classes=0, in_chans=in_chans, **args)
        features = _width(self.trunk, torch.zeros(2, in_chans, size, size), trunk)
        self.head: nn.Module = nn.Identity()
        if head:
            sizes = dict.fromkeys(("in_features", "num_features", "features"), features)
            sizes |= dict.fromkeys(("embedding_size", "out_features", "dim"), dim)
            self.head = build(head, head_args or {}, sizes)
        self.num_features = self.head_hidden_size = _width(self.head, torch.zeros(2, features), head)

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.head(self.trunk(x))
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


def _width(module: nn.Module, inputs: Tensor, name: str) -> int:
    """Return the number of features of a module's output for inputs of two images."""
    try:
        with torch.no_grad():
            outputs = module.eval()(inputs)
    except RuntimeError as error:
        raise ValueError(f"{name} does not take a tensor {list(inputs.shape)}: {error}") from None
    module.train()
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 2:
        shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        pool = ": add nn.AdaptiveAvgPool2d(1) and nn.Flatten()" if isinstance(shape, list) and len(shape) == 4 else ""
        raise ValueError(f"{name} must give a tensor [n, features], not {shape} for 2 images{pool}")
    return outputs.shape[1]


default_cfgs = generate_default_cfgs({CUSTOM: {"url": "", "num_classes": 0, "first_conv": "", "classifier": ""}})


@register_model
def custom(pretrained: bool = False, **kwargs: Any) -> CustomNetwork:
    """Build `CustomNetwork` from its keyword arguments."""
    model: CustomNetwork = build_model_with_cfg(CustomNetwork, CUSTOM, pretrained, **kwargs)
    return model
