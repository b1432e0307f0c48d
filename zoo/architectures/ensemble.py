"""ensemble: several networks side by side as one timm model, whose features are their embeddings, joined.

Ensembles by concatenation, as in Elezi et al. 2020, The Group Loss for Deep Metric Learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from zoo.cards import Head
from zoo.errors import RecipeError
from zoo.network import Network, create_heads, create_trunk, feature_count


class Ensemble(nn.Module):
    """Normalised images [n, in_chans, h, w] to the unit embeddings of all members, joined: [n, sum of their dims].

    members: for each its `architecture`, and optionally `args` of that and `heads`, as [{"name": ..., "dim": ...}].
    All members get the same images. There is no classifier: `num_classes` is 0.
    """

    def __init__(self, members: Sequence[Mapping[str, Any]] = (), in_chans: int = 3, num_classes: int = 0) -> None:
        super().__init__()
        if not members or num_classes:
            raise RecipeError("an ensemble needs at least one member, and has no classifier (num_classes 0).")
        self.members = nn.ModuleList(_network(in_chans, **member) for member in members)
        self.num_features = self.head_hidden_size = sum(_dim(network) for network in self.members)

    def forward_features(self, x: Tensor) -> Tensor:
        return torch.cat([member(x) for member in self.members], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


def _network(
    in_chans: int, architecture: str, args: Mapping[str, Any] | None = None, heads: Sequence[Mapping[str, Any]] = ()
) -> Network:
    trunk = create_trunk(architecture, in_chans, args)
    return Network(trunk, create_heads([Head(**head) for head in heads], feature_count(trunk)))


def _dim(network: nn.Module) -> int:
    """The length of a network's embedding."""
    assert isinstance(network, Network)
    if not network.heads:
        return feature_count(network.trunk)
    return sum(cast(nn.Linear, head).out_features for head in network.heads.values())


default_cfgs = generate_default_cfgs({"ensemble": {"url": "", "num_classes": 0, "first_conv": "", "classifier": ""}})


@register_model
def ensemble(pretrained: bool = False, **kwargs: Any) -> Ensemble:
    """Networks side by side; keyword arguments are those of `Ensemble`."""
    model: Ensemble = build_model_with_cfg(Ensemble, "ensemble", pretrained, **kwargs)
    return model
