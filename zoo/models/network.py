"""Torch network of a model: timm trunk and heads to unit embeddings, read from and written to a model folder.

An ensemble is a timm model of several networks; its features are their joined embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import numpy as np
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import normalize

from zoo.data.preprocessing import Preprocessing
from zoo.errors import ModelFolderError, RecipeError, UsageError, nearest
from zoo.files import write_json
from zoo.models.backbones import register
from zoo.models.backbones.custom import CustomNetwork, trusted
from zoo.models.card import Card, Head, heads_problem
from zoo.models.folder import CONFIG_FILE, HEADS_FILE, ONNX, WEIGHTS_FILE
from zoo.models.places import CUSTOM, is_trusted
from zoo.models.pretrained.state import fit_state, without_shared_prefix
from zoo.models.pretrained.weights import Weights, pretrained_config, read_weights
from zoo.models.whitening import SMALLEST, within_class_whitening

RESERVED = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "features_only")
"""Arguments of timm's factory that a card must not set, because they would read other files, or pickles."""

WITHIN_CLASSES = 1.0
"""Shrinkage of whitening within classes, chosen with 20 classes to fit and 50 to measure, of classes 1 to 100 of birds
and cars."""

SPARE_LENGTH = 0.1
"""Length of what rows without a direction add to an embedding, as a share of the others': not 0, so that they learn."""


class Network(nn.Module):
    """Network from normalised float images [n, c, h, w] to unit embeddings [n, dim].

    The embedding is the concatenation of the heads' unit vectors, normalised again (DiVA, section 4: embeddings joined
    at test); without heads it is the pooled features, normalised.
    """

    def __init__(self, trunk: nn.Module, heads: nn.ModuleDict) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, heads

    def forward(self, images: Tensor) -> Tensor:
        return self.embed(self.trunk(images))

    def embed(self, features: Tensor) -> Tensor:
        """Map pooled features [n, f] to unit embeddings [n, dim]. Raises `RecipeError` (`unsupported-model`)."""
        if features.ndim != 2:
            raise RecipeError(
                f"the trunk {type(self.trunk).__name__} gives {list(features.shape)} for {len(features)} images, tokens"
                " or a map that is not pooled, but a model needs one vector per image. Choose an architecture that "
                "pools, or make this one pool if it can, with backbone.args.global_pool=avg.",
                code="unsupported-model",
            )
        if not self.heads:
            return normalize(features, dim=1)
        return normalize(torch.cat([normalize(head(features), dim=1) for head in self.heads.values()], dim=1), dim=1)


class PixelNetwork(nn.Module):
    """Network with its normalisation inside: uint8 pixels [n, h, w, c] to unit float32 embeddings [n, dim]."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        # The constants cover a whole row of pixels, in their order in memory: with constants per channel, and channels
        # last as in int8 graphs, ONNX Runtime takes ten times as long.
        width = preprocessing.crop
        self.register_buffer("mean", (255 * torch.tensor(preprocessing.mean)).repeat(width), persistent=False)
        self.register_buffer("std", (255 * torch.tensor(preprocessing.std)).repeat(width), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        embeddings: Tensor = self.network(self.images(pixels))
        return embeddings.float()

    def images(self, pixels: Tensor) -> Tensor:
        """Map uint8 pixels [n, h, w, c] to normalised images [n, c, h, w]."""
        rows = (pixels.flatten(2).to(self.mean.dtype) - self.mean) / self.std
        return rows.reshape(pixels.shape).permute(0, 3, 1, 2)


def feature_count(trunk: nn.Module) -> int:
    """Return the length f of a trunk's pooled features [n, f].

    timm's `num_features` counts the last feature map's channels; models that widen them after pooling (MobileNetV3,
    VGG, GhostNet) have the length of the output in `head_hidden_size`.
    """
    size = getattr(trunk, "head_hidden_size", None)
    return int(trunk.num_features if size is None else size)  # type: ignore[arg-type]


def create_trunk(
    architecture: str, channels: int, args: Mapping[str, Any] | None = None, pretrained: bool | str = False
) -> nn.Module:
    """Create a timm model without classifier: images [n, channels, h, w] to features [n, `feature_count(trunk)`].

    Args:
        architecture: The name in timm.
        channels: Channels of the images. If the weights have another number, timm adapts the first convolution (one
            channel: the sum over theirs).
        args: Arguments of the architecture.
        pretrained: False for random weights, else as in `zoo.models.pretrained.weights.read_weights`.

    Raises:
        RecipeError: `unknown-name`, `conflicting-settings`, `unsupported-model` for arguments or weights that do not
            fit in every entry, or what `read_weights` raises.
        HubError: If the Hub does not provide the weights.
    """
    check_architecture(architecture)
    if architecture == CUSTOM and pretrained is not False:
        return _start_custom(build_trunk(architecture, channels, dict(args or {}), None), args or {}, pretrained)
    weights = None if pretrained is False else read_weights(architecture, pretrained)
    return build_trunk(architecture, channels, dict(args or {}), weights)


def _start_custom(network: nn.Module, args: Mapping[str, Any], pretrained: bool | str) -> nn.Module:
    """Give a network of the user the weights of another such model, or those of timm to the trunk before its head."""
    if isinstance(pretrained, str):
        state = read_weights(CUSTOM, pretrained).state
        if state.keys() == network.state_dict().keys():
            network.load_state_dict(state)
            return network
    trunk = cast(CustomNetwork, network).trunk
    channels = cast(int, network.in_chans)
    trunk.load_state_dict(create_trunk(args["trunk"], channels, args["trunk_args"], pretrained).state_dict())
    return network


def check_architecture(architecture: str) -> None:
    """Register ours with timm; raise `RecipeError` for a name it lacks (`unknown-name`)."""
    register()
    if not timm.is_model(architecture):
        hint = nearest(architecture, timm.list_models())
        raise RecipeError(f"timm has no architecture {architecture!r}.{hint}", code="unknown-name")
    pretrained_config(architecture)


def build_trunk(architecture: str, channels: int, args: dict[str, Any], weights: Weights | None) -> nn.Module:
    """Create the model of `create_trunk` from weights that are already read.

    Args:
        architecture: The name in timm.
        channels: Channels of the images.
        args: Arguments of the architecture.
        weights: The weights; None for random ones. If their names do not fit, `fit_state` fits them, with a note.

    Returns:
        The model, without classifier.

    Raises:
        RecipeError: If an argument is reserved (`conflicting-settings`), the arguments do not fit
            (`unsupported-model`), or the weights do not (`weights-mismatch`).
    """
    if refused := sorted(set(args) & {*RESERVED, "num_classes", "in_chans"}):
        raise RecipeError(
            f"the architecture {architecture!r} must not get the argument {', '.join(refused)}.",
            code="conflicting-settings",
        )
    if weights is None:
        return _create(architecture, channels, args, None)
    images, own_channels = dict(weights.images), _weights_channels(weights.state, channels)
    if "input_size" in images:  # timm adapts the first convolution from these channels
        images["input_size"] = (own_channels, *images["input_size"][1:])
    state = _without_classifier(architecture, weights.state)
    try:
        return _create(architecture, channels, args, {**images, "state_dict": state})
    except RecipeError:
        plain = _create(architecture, own_channels, args, None)
    expected = {name: tuple(tensor.shape) for name, tensor in plain.state_dict().items()}
    state = without_shared_prefix(weights.state, expected)
    try:  # timm's own conversions of other names
        own = _without_classifier(architecture, state)
        return _create(architecture, channels, args, {**images, "state_dict": own})
    except RecipeError:
        state, note = fit_state(state, expected, weights.source)
    trunk = _create(architecture, channels, args, {**images, "state_dict": state})
    weights.notes.append(note)
    return trunk


def linear_layers(weights: Weights, features: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the linear layers of a file that take a trunk's features, by name: weight [d, features] and bias [d]."""
    layers = {}
    for name, weight in weights.state.items():
        if name.endswith(".weight") and weight.ndim == 2 and weight.shape[1] == features:
            bias = weights.state.get(f"{name.removesuffix('weight')}bias", torch.zeros(len(weight)))
            layers[name.removesuffix(".weight")] = weight, bias
    return layers


def _create(architecture: str, channels: int, args: dict[str, Any], overlay: dict[str, Any] | None) -> nn.Module:
    try:
        trunk = timm.create_model(
            architecture,
            pretrained=overlay is not None,
            pretrained_cfg_overlay={**overlay, "num_classes": 0} if overlay else None,
            num_classes=0,
            in_chans=channels,
            **args,
        )
    except ModelFolderError:
        raise
    except Exception as error:  # architectures raise any type for wrong arguments or weights
        reason = shorten(str(error), 500, placeholder=" ...").rstrip(".") or type(error).__name__
        raise RecipeError(
            f"the architecture {architecture!r} cannot be built with {shorten(str(args), 300)}: {reason}.",
            code="unsupported-model",
        ) from error
    if isinstance(trunk.pretrained_cfg, dict):
        # timm would otherwise keep and copy a second set of the weights.
        trunk.pretrained_cfg.pop("state_dict", None)
    return trunk


def _without_classifier(architecture: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state without timm's classifier of the architecture, with which timm would not load strictly."""
    config = timm.models.get_pretrained_cfg(architecture)
    names = (config.classifier if config else None) or ()
    prefixes = tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def _weights_channels(state: Mapping[str, Tensor], channels: int) -> int:
    """Return the channels of images that weights take: 1 or 3, by their convolutions, of which any may be the first.

    Depthwise convolutions have one input channel too, so 3 has precedence.
    """
    inputs = {tensor.shape[1] for tensor in state.values() if tensor.ndim == 4}
    return next((number for number in (3, 1) if number in inputs), channels)


def check_heads(heads: Sequence[Head]) -> None:
    """Raise `RecipeError` (`conflicting-settings`) for heads that do not fit, and for names that torch reserves."""
    if problem := heads_problem(heads):
        raise RecipeError(problem, code="conflicting-settings")
    empty = nn.ModuleDict()
    if taken := [head.name for head in heads if hasattr(empty, head.name)]:
        raise RecipeError(
            f"a head cannot be called {taken[0]!r}, which torch reserves; choose another name.",
            code="conflicting-settings",
        )


def create_heads(heads: Sequence[Head], features: int) -> nn.ModuleDict:
    """Create a linear map from `features` numbers for each head. Raises what `check_heads` raises."""
    check_heads(heads)
    return nn.ModuleDict({head.name: nn.Linear(features, head.dim) for head in heads})


@torch.no_grad()
def start_heads(
    heads: nn.ModuleDict, features: Tensor, base: nn.ModuleDict | None = None, labels: np.ndarray | None = None
) -> None:
    """Give every head the principal directions of features, so that it is about as good a search as the trunk.

    With random weights it would mix the trunk's numbers at random, which is worse than the trunk itself.

    Args:
        heads: Linear maps from f numbers.
        features: Pooled features of the training images, float [n, f].
        base: The heads of the model that training starts from, which are trained already: a single head of the same
            size is taken over, of others the principal directions.
        labels: The classes of the images, int64 [n], by which the heads are whitened within classes at the end. New
            classes vary within as these do, so that it helps on them too (docs/train.md).
    """
    if not (base and _take_over(heads, base)):
        _set_principal(heads, features, base)
    if labels is not None:
        for head in heads.values():
            assert isinstance(head, nn.Linear)
            _whiten_within_classes(head, features, labels)


def _set_principal(heads: nn.ModuleDict, features: Tensor, base: nn.ModuleDict | None) -> None:
    """Give every head the principal directions of features, or of the joined embedding of several heads of a base."""
    weight, bias = _base_map(base, features) if base else (torch.eye(features.shape[1]).double(), torch.zeros(1))
    values = features.double().cpu() @ weight.T + bias
    for head in heads.values():
        assert isinstance(head, nn.Linear)
        set_directions(head, principal_directions(values, head.out_features) @ weight, features)


def _whiten_within_classes(head: nn.Linear, features: Tensor, labels: np.ndarray) -> None:
    """Let the unit embeddings of a head vary by about the same along all directions within a class."""
    weight, bias = head.weight.double().cpu(), head.bias.double().cpu()
    rows = normalize(features.double().cpu() @ weight.T + bias, dim=1)
    whitening = torch.from_numpy(within_class_whitening(rows.numpy(), labels, WITHIN_CLASSES))
    length = (whitening @ weight).norm(dim=1).mean()
    head.weight.copy_(whitening @ weight / length)
    head.bias.copy_(whitening @ bias / length)


@torch.no_grad()
def set_directions(head: nn.Linear, rows: Tensor, features: Tensor) -> None:
    """Let a head give the parts of centred features along directions.

    Args:
        head: A linear map f -> d, with random weights.
        rows: The directions [k, f], k at most d. Further numbers of the head get random ones that change cosines
            little.
        features: Pooled features of the training images, float [n, f].
    """
    rows = rows / rows.norm(dim=1).mean()
    head.weight[: len(rows)] = rows.to(head.weight)
    centred = features.to(head.weight) - features.to(head.weight).mean(0)
    if len(spare := head.weight[len(rows) :]):
        spare *= SPARE_LENGTH * (centred @ head.weight[: len(rows)].T).norm() / (centred @ spare.T).norm()
    head.bias.copy_(-head.weight @ features.to(head.weight).mean(0))


def _take_over(heads: nn.ModuleDict, base: nn.ModuleDict) -> bool:
    """Copy a single head of the same size, so that the start is exactly as good as the base; return whether it was."""
    if len(heads) != 1 or len(base) != 1:
        return False
    head, source = next(iter(heads.values())), next(iter(base.values()))
    assert isinstance(head, nn.Linear)
    assert isinstance(source, nn.Linear)
    if head.weight.shape != source.weight.shape:
        return False
    length = source.weight.norm(dim=1).mean()  # rows as long as those of other starts learn as fast
    head.weight.copy_(source.weight / length)
    head.bias.copy_(source.bias / length)
    return True


def principal_directions(values: Tensor, count: int, whitening: float = 0.5) -> Tensor:
    """Return the directions of the largest variance, half whitened, and random ones where the rows do not vary.

    Half whitened: each direction is divided by the square root of its standard deviation, which lies between PCA, where
    a few large directions decide, and whitening, which enlarges noise.
    A few images span few directions, but new classes vary along others too: random ones, as long as the last direction,
    stand for those.

    Args:
        values: Rows float64 [n, f].
        count: The number of directions.
        whitening: The power of the standard deviation by which a direction is divided: 0 for PCA, 1 for whitening.

    Returns:
        Orthogonal rows float64 [min(count, f), f], the largest variance first.
    """
    width = values.shape[1]
    variances, columns = torch.linalg.eigh(torch.cov(values.T).reshape(width, width))
    varied = int((variances > SMALLEST * variances[-1]).sum())
    kept = columns.flip(1)[:, : min(varied, count)].T
    # The sign of an eigenvector is arbitrary; this rule gives the same sign on every machine.
    kept = kept * kept.gather(1, kept.abs().argmax(1, keepdim=True)).sign()
    lengths = variances.flip(0)[: len(kept)] ** (-whitening / 2)
    kept = kept * lengths[:, None]
    rest = min(count - len(kept), width - varied)
    if rest < 1:
        return kept
    mixed, _ = torch.linalg.qr(torch.randn(width - varied, rest, dtype=torch.float64))
    return torch.cat([kept, lengths[-1] * (columns[:, : width - varied] @ mixed).T])


def discriminant_directions(values: Tensor, labels: Tensor, count: int, shrinkage: float = 0.3) -> Tensor:
    """Return the principal directions of rows after `within_class_whitening`, as in linear discriminant analysis.

    Args:
        values: Rows float64 [n, f].
        labels: Their classes, int64 [n].
        count: The number of directions.
        shrinkage: The multiple of the mean variance within classes that is added to each direction's.

    Returns:
        Rows float64 [min(count, f), f], the most important first.
    """
    whitening = torch.from_numpy(within_class_whitening(values.numpy(), labels.numpy(), shrinkage))
    return principal_directions(values @ whitening, count, whitening=0.0) @ whitening


def _base_map(base: nn.ModuleDict, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight [d, f] and bias [d] of all heads together, each scaled as in the joined embedding."""
    maps = []
    for head in base.values():
        assert isinstance(head, nn.Linear)
        weight, bias = head.weight.detach().double(), head.bias.detach().double()
        length = (features.double().cpu() @ weight.T + bias).norm(dim=1).mean()
        maps.append((weight / length, bias / length))
    return torch.cat([weight for weight, _ in maps]), torch.cat([bias for _, bias in maps])


def save_network(network: Network, card: Card, folder: Path, half: bool = False) -> list[str]:
    """Write the trunk under timm's names, the heads and timm's config.json; return the names of the weight files.

    Args:
        network: The network.
        card: Its card.
        folder: The folder to write to.
        half: Store float32 weights in float16, which takes half the space; `load_network` computes in float32.

    Raises:
        UsageError: `not-available` if a weight is too large for float16.
    """
    state = half_state if half else cpu_state
    save_file(state(network.trunk), folder / WEIGHTS_FILE)
    config = _timm_config(card.architecture, card.architecture_args, network.trunk, card.preprocessing)
    write_json(folder / CONFIG_FILE, config)
    if not network.heads:
        return [WEIGHTS_FILE]
    save_file(state(network.heads), folder / HEADS_FILE)
    return [WEIGHTS_FILE, HEADS_FILE]


def load_network(card: Card, folder: Path) -> Network:
    """Load the card's network with the folder's weights, in evaluation mode.

    Raises:
        ModelFolderError: `not-available` for an ONNX graph, `unsupported-model` if the card describes no network,
            `invalid-value` if its dim is not the trunk's, `missing-file`, or `weights-mismatch` if the files do not
            hold its weights.
    """
    if card.architecture == ONNX:
        raise ModelFolderError(
            f"{card.name} is an ONNX graph without a network for torch: it embeds, indexes and searches "
            "(--runtime onnx, runtime='onnx'), and cannot be trained, whitened or exported.",
            code="not-available",
        )
    try:
        with trusted(is_trusted(folder)):
            trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
        features = feature_count(trunk)
        heads = create_heads(card.heads, features)
    except RecipeError as error:
        raise ModelFolderError(
            f"the card of {card.name} does not describe a network: {error}", code="unsupported-model"
        ) from None
    if not card.heads and features != card.dim:
        raise ModelFolderError(
            f"the card of {card.name} says dim {card.dim}; {card.architecture} gives {features}.", code="invalid-value"
        )
    _load(trunk, folder / WEIGHTS_FILE)
    if card.heads:
        _load(heads, folder / HEADS_FILE)
    return Network(trunk, heads).eval()


def shortened_network(network: Network, dim: int) -> Network:
    """Return a network whose one head gives its first `dim` numbers alone; a network of that dimension stays."""
    for name, head in network.heads.items():
        assert isinstance(head, nn.Linear)
        if len(network.heads) == 1 and dim < head.out_features:
            short = nn.Linear(head.in_features, dim)
            short.load_state_dict({"weight": head.weight[:dim], "bias": head.bias[:dim]})
            network.heads[name] = short
    return network.eval()


def _load(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise ModelFolderError(f"{path} is missing; the model folder is incomplete.", code="missing-file") from None
    except Exception as error:  # safetensors raises its own type, torch RuntimeError for keys and shapes
        reason = " ".join(str(error).split())  # torch writes one line per key
        raise ModelFolderError(
            f"{path} does not hold the weights that the card describes: {reason}", code="weights-mismatch"
        ) from None


def cpu_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict in the form that safetensors needs: detached, on the CPU, contiguous."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}


def half_state(module: nn.Module) -> dict[str, Tensor]:
    """Return `cpu_state` with its float32 tensors in float16. Raises `UsageError` (`not-available`)."""
    state = {
        name: tensor.half() if tensor.dtype == torch.float32 else tensor for name, tensor in cpu_state(module).items()
    }
    if wrong := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
        raise UsageError(
            f"{wrong[0]} has numbers that float16 does not hold (up to 65,504). Leave out --half.",
            code="not-available",
        )
    return state


def _timm_config(
    architecture: str, args: Mapping[str, Any], trunk: nn.Module, preprocessing: Preprocessing
) -> dict[str, Any]:
    """Return the config.json with which timm builds the trunk from a folder or a Hub repository.

    Args:
        architecture: The name in timm.
        args: Arguments of the architecture.
        trunk: The trunk, for its number of features.
        preprocessing: The size, channels and normalisation of the images.
    """
    return {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": int(trunk.num_features),  # type: ignore[arg-type]
        "model_args": {**args, "in_chans": preprocessing.channels},
        "pretrained_cfg": {
            "input_size": [preprocessing.channels, preprocessing.crop, preprocessing.crop],
            "num_classes": 0,
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.crop / preprocessing.resize,
            "crop_mode": "squash" if preprocessing.squeeze else "center",
        },
    }


class EnsembleNetwork(nn.Module):
    """Ensemble by concatenation (Elezi et al. 2020, The Group Loss for Deep Metric Learning).

    Maps normalised images [n, in_chans, h, w], the same for all members, to the joined unit embeddings of the members,
    [n, sum of their dims].

    Args:
        members: For each its `architecture`, optionally `args` and `heads`, as [{"name": ..., "dim": ...}].
        in_chans: Channels of the images.
        num_classes: Must be 0, as there is no classifier.
    """

    def __init__(self, members: Sequence[Mapping[str, Any]] = (), in_chans: int = 3, num_classes: int = 0) -> None:
        super().__init__()
        if not members or num_classes:
            raise RecipeError(
                "an ensemble needs at least one member, and has no classifier (num_classes 0).", code="invalid-value"
            )
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
    """Return the length of a network's embedding."""
    assert isinstance(network, Network)
    if not network.heads:
        return feature_count(network.trunk)
    return sum(cast(nn.Linear, head).out_features for head in network.heads.values())


default_cfgs = generate_default_cfgs({"ensemble": {"url": "", "num_classes": 0, "first_conv": "", "classifier": ""}})


@register_model
def ensemble(pretrained: bool = False, **kwargs: Any) -> EnsembleNetwork:
    """Build `EnsembleNetwork` from its keyword arguments."""
    model: EnsembleNetwork = build_model_with_cfg(EnsembleNetwork, "ensemble", pretrained, **kwargs)
    return model
