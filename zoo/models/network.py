"""The torch network of a card: timm trunk, heads, unit embeddings; read from and written to a model folder.

An ensemble is one timm model made of several networks, whose features are their embeddings, joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import normalize

from zoo.data.preprocessing import Preprocessing
from zoo.errors import ModelFolderError, RecipeError, nearest
from zoo.files import write_json
from zoo.models.backbones import register
from zoo.models.card import Card, Head, heads_problem
from zoo.models.weights import CONFIG_FILE, WEIGHTS_FILE, Weights, read_weights

HEADS_FILE = "heads.safetensors"

RESERVED = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "features_only")
"""Arguments of timm's factory that a card or a config.json must not set: they would read other files, or pickles."""


class Network(nn.Module):
    """Normalised float images [n, c, h, w] to unit embeddings [n, dim].

    The concatenation of the heads' unit vectors, normalised again (DiVA, section 4: embeddings joined at test);
    without heads, the pooled features, normalised.
    """

    def __init__(self, trunk: nn.Module, heads: nn.ModuleDict) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, heads

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(self.trunk(images))

    def embed(self, features: Tensor) -> Tensor:
        """Pooled features [n, f] to unit embeddings [n, dim]. Raises `RecipeError` where they are not pooled."""
        if features.ndim != 2:
            raise RecipeError(
                f"the trunk {type(self.trunk).__name__} gives {list(features.shape)} for {len(features)} images, tokens"
                " or a map that is not pooled. One vector an image is wanted: choose an architecture that pools, or "
                "make this one pool where it can, with backbone.args.global_pool=avg."
            )
        if not self.heads:
            return normalize(features, dim=1)
        return normalize(torch.cat([normalize(head(features), dim=1) for head in self.heads.values()], dim=1), dim=1)


class PixelNetwork(nn.Module):
    """uint8 pixels [n, h, w, c] to unit float32 embeddings [n, dim]: the network with its normalisation inside."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        # Of a whole row of pixels, as they lie in memory: ONNX Runtime takes ten times as long where they are of the
        # channels alone and these come last, as in int8 graphs.
        width = preprocessing.crop
        self.register_buffer("mean", (255 * torch.tensor(preprocessing.mean)).repeat(width), persistent=False)
        self.register_buffer("std", (255 * torch.tensor(preprocessing.std)).repeat(width), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        embeddings: Tensor = self.network(self.images(pixels))
        return embeddings.float()

    def images(self, pixels: Tensor) -> Tensor:
        """uint8 pixels [n, h, w, c] to normalised images [n, c, h, w], as the network takes them."""
        rows = (pixels.flatten(2).to(self.mean.dtype) - self.mean) / self.std
        return rows.reshape(pixels.shape).permute(0, 3, 1, 2)


def feature_count(trunk: nn.Module) -> int:
    """The length f of the pooled features [n, f] that a trunk gives.

    timm's `num_features` counts the last feature map's channels; models that widen them after pooling (MobileNetV3,
    VGG, GhostNet) say the length of what their `forward` gives in `head_hidden_size`.
    """
    wide = getattr(trunk, "head_hidden_size", None)
    return int(trunk.num_features if wide is None else wide)  # type: ignore[arg-type]


def create_trunk(
    architecture: str, channels: int, args: Mapping[str, Any] | None = None, pretrained: bool | str = False
) -> nn.Module:
    """A timm model without classifier: images [n, channels, h, w] to pooled features [n, `feature_count(trunk)`].

    Random weights, or those that `pretrained` names (`zoo.models.weights.read_weights`); for another number of channels
    than theirs the first convolution is adapted as timm does it (one channel: the sum over theirs).

    Raises `RecipeError` for an architecture that timm does not know, that does not take `args` or that the weights do
    not fit in every entry, and `HubError` for weights that the Hub does not give.
    """
    check_architecture(architecture)
    weights = None if pretrained is False else read_weights(architecture, pretrained)
    return build_trunk(architecture, channels, dict(args or {}), weights)


def check_architecture(architecture: str) -> None:
    """Make the project's own architectures known to timm; raise `RecipeError` for one that it does not know."""
    register()
    if not timm.is_model(architecture):
        raise RecipeError(f"timm knows no architecture {architecture!r}.{nearest(architecture, timm.list_models())}")


def build_trunk(architecture: str, channels: int, args: dict[str, Any], weights: Weights | None) -> nn.Module:
    """The model of `create_trunk`, from weights that have been read."""
    if refused := sorted(set(args) & {*RESERVED, "num_classes", "in_chans"}):
        raise RecipeError(f"the architecture {architecture!r} takes no argument {', '.join(refused)} here.")
    try:
        trunk = timm.create_model(
            architecture,
            pretrained=weights is not None,
            pretrained_cfg_overlay=_overlay(architecture, weights) if weights else None,
            num_classes=0,
            in_chans=channels,
            **args,
        )
    except Exception as error:  # whatever an architecture does with arguments or weights that are not its own
        using = f"{args} and the weights of {weights.source}" if weights else f"{args}"
        reason = shorten(str(error), 500, placeholder=" ...").rstrip(".") or type(error).__name__
        raise RecipeError(f"the architecture {architecture!r} cannot be built with {using}: {reason}.") from error
    if isinstance(trunk.pretrained_cfg, dict):
        # Else timm holds the weights, and copies them, beside the trunk's own.
        trunk.pretrained_cfg.pop("state_dict", None)
    return trunk


def _overlay(architecture: str, weights: Weights) -> dict[str, Any]:
    """What timm is to load: with a classifier among the weights, or in their configuration, it would not be strict."""
    known = timm.models.get_pretrained_cfg(architecture)
    names = (known.classifier if known else None) or ()
    prefixes = tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
    state = {name: tensor for name, tensor in weights.state.items() if not name.startswith(prefixes)}
    return {**weights.images, "state_dict": state, "num_classes": 0}


def check_heads(heads: Sequence[Head]) -> None:
    """Raise `RecipeError` for heads of one name, whose weights would be one, and for names that torch has taken."""
    if why := heads_problem(heads):
        raise RecipeError(why)
    empty = nn.ModuleDict()
    if taken := [head.name for head in heads if hasattr(empty, head.name)]:
        raise RecipeError(f"a head cannot be called {taken[0]!r}, a name that torch has taken; give it another one.")


def create_heads(heads: Sequence[Head], features: int) -> nn.ModuleDict:
    """A linear map from `features` numbers for each head. Raises what `check_heads` raises."""
    check_heads(heads)
    return nn.ModuleDict({head.name: nn.Linear(features, head.dim) for head in heads})


def save_network(network: Network, card: Card, folder: Path) -> list[str]:
    """Write the trunk under timm's names, the heads beside it and timm's config.json; the weight files' names."""
    save_file(cpu_state(network.trunk), folder / WEIGHTS_FILE)
    config = timm_config(card.architecture, card.architecture_args, network.trunk, card.preprocessing)
    write_json(folder / CONFIG_FILE, config)
    if not network.heads:
        return [WEIGHTS_FILE]
    save_file(cpu_state(network.heads), folder / HEADS_FILE)
    return [WEIGHTS_FILE, HEADS_FILE]


def load_network(card: Card, folder: Path) -> Network:
    """The card's network with the folder's weights, in evaluation mode. Raises `ModelFolderError` where they differ."""
    try:
        trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
        features = feature_count(trunk)
        heads = create_heads(card.heads, features)
    except RecipeError as error:
        raise ModelFolderError(f"the card of {card.name} describes no network: {error}") from None
    if not card.heads and features != card.dim:
        raise ModelFolderError(f"the card of {card.name} says dim {card.dim}; {card.architecture} gives {features}.")
    _load(trunk, folder / WEIGHTS_FILE)
    if card.heads:
        _load(heads, folder / HEADS_FILE)
    return Network(trunk, heads).eval()


def _load(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise ModelFolderError(f"{path} is missing; the model folder is incomplete.") from None
    except Exception as error:  # safetensors raises its own type, torch RuntimeError for keys and shapes
        why = " ".join(str(error).split())  # torch writes a line for each key
        raise ModelFolderError(f"{path} does not hold the weights that the card describes: {why}") from None


def cpu_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict as safetensors writes it: detached, on the CPU, contiguous."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}


def timm_config(architecture: str, args: Mapping[str, Any], trunk: nn.Module, how: Preprocessing) -> dict[str, Any]:
    """The config.json by which timm builds the trunk from a folder or a Hub repository."""
    return {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": int(trunk.num_features),  # type: ignore[arg-type]
        "model_args": {**args, "in_chans": how.channels},
        "pretrained_cfg": {
            "input_size": [how.channels, how.crop, how.crop],
            "num_classes": 0,
            "mean": list(how.mean),
            "std": list(how.std),
            "interpolation": how.interpolation,
            "crop_pct": how.crop / how.resize,
            "crop_mode": "center",
        },
    }


class EnsembleNetwork(nn.Module):
    """Normalised images [n, in_chans, h, w] to the unit embeddings of all members, joined: [n, sum of their dims].

    members: for each its `architecture`, and optionally `args` of that and `heads`, as [{"name": ..., "dim": ...}].
    All members get the same images. There is no classifier: `num_classes` is 0. Ensembles by concatenation, as in
    Elezi et al. 2020, The Group Loss for Deep Metric Learning.
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
def ensemble(pretrained: bool = False, **kwargs: Any) -> EnsembleNetwork:
    """Networks side by side; keyword arguments are those of `Ensemble`."""
    model: EnsembleNetwork = build_model_with_cfg(EnsembleNetwork, "ensemble", pretrained, **kwargs)
    return model
