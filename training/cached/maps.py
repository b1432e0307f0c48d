"""Cached views: augmented training images that have passed through the frozen first layers of the trunk once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from training.cached.views import CachedViews, draw_views
from training.methods.base import Forward
from zoo.console import Progress
from zoo.errors import RecipeError
from zoo.models.network import PixelNetwork

ADVICE = "Set data.views=0, so that every step augments images."
GIB = 2**30
CHUNK = 256
"""Images per pass through a network that is measured."""


@dataclass(frozen=True)
class SplitTrunk:
    """The names of a trunk's layers in the order of their calls, before and from the first that learns."""

    frozen: tuple[str, ...]
    learning: tuple[str, ...]


def split_trunk(trunk: nn.Module, image: Tensor) -> SplitTrunk:
    """Split a trunk before its first layer that learns.

    Args:
        trunk: A network whose layers follow one another, such as timm's EfficientNet and ResNet.
        image: An example of its input, float [1, c, h, w].

    Raises:
        RecipeError: `unsupported-model` if the first or no layer learns; `unsupported-model` if the layers in turn
            compute something else than the trunk.
    """
    training = trunk.training
    trunk.eval()
    with torch.no_grad():
        names, features = _call_order(trunk, image)
        is_chain = _gives(chain(trunk, names), image, features)
    trunk.train(training)
    learns = [any(parameter.requires_grad for parameter in trunk.get_submodule(name).parameters()) for name in names]
    first = learns.index(True) if True in learns else 0
    if not first:
        raise RecipeError(
            "data.views keeps what the frozen first layers give, but the first layer learns, or none. Set "
            "backbone.frozen_stages, or train the heads alone on features: zoo train NAME --features DIR.",
            code="unsupported-model",
        )
    if not is_chain:
        raise RecipeError(
            f"the layers of {type(trunk).__name__} do not simply follow one another. {ADVICE}", code="unsupported-model"
        )
    return SplitTrunk(names[:first], names[first:])


def frozen_digest(trunk: nn.Module, split: SplitTrunk) -> str:
    """Return hexadecimal digits that differ for other weights of the frozen layers, and for another split."""
    total = hashlib.sha256(repr(split).encode())
    for name, tensor in chain(trunk, split.frozen).state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().numpy().data)
    return total.hexdigest()


def chain(trunk: nn.Module, names: tuple[str, ...]) -> nn.Sequential:
    """Return layers of a trunk, which share their weights with it, one after another."""
    return nn.Sequential(*(trunk.get_submodule(name) for name in names))


def learning_layers(trunk: nn.Module, names: tuple[str, ...]) -> nn.Sequential:
    """Return the layers that give pooled features [b, f] of the frozen layers' maps."""
    return nn.Sequential(chain(trunk, names), nn.Flatten())


def frozen_inputs(
    network: PixelNetwork, pixels: np.ndarray, device: torch.device, maps: dict[str, Tensor] | None
) -> tuple[Iterator[Tensor], Callable[[Tensor], Tensor]]:
    """Return chunks of images or of the frozen layers' maps, and the layers that give their pooled features.

    Args:
        network: The network.
        pixels: uint8 [n, crop, crop, c].
        device: Where to compute.
        maps: What frozen layers gave for these images, by the digest of the layers; it is read and replaced here, so
            that successive networks with equal frozen layers share them. None for images.
    """
    trunk = network.network.trunk
    images = (network.images(chunk.to(device)) for chunk in torch.from_numpy(pixels).split(CHUNK))
    if maps is None:
        return images, trunk
    example = network.images(torch.from_numpy(pixels[:1]).to(device))
    try:
        split = split_trunk(trunk, example)
    except RecipeError:  # nothing is frozen, or the layers do not follow one another
        return images, trunk
    frozen, digest = chain(trunk, split.frozen), frozen_digest(trunk, split)
    if frozen(example).numel() > example.numel():
        return images, trunk
    if digest not in maps:
        maps.clear()
        maps[digest] = torch.cat([frozen(chunk).cpu() for chunk in images])
    return (chunk.to(device) for chunk in maps[digest].split(CHUNK)), learning_layers(trunk, split.learning)


def _call_order(trunk: nn.Module, image: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of a trunk's layers in the order of their calls, and its features of an image.

    A layer is a child of the trunk, or of one of its sequences.
    """
    layers: dict[str, nn.Module] = {}
    for name, child in trunk.named_children():
        inner = child.named_children() if isinstance(child, nn.Sequential) else ()
        layers |= {f"{name}.{part}": layer for part, layer in inner} or {name: child}
    called: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs, name=name: called.append(name))
        for name, layer in layers.items()
    ]
    try:
        features = trunk(image)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(called), features


def _gives(layers: nn.Module, image: Tensor, features: Tensor) -> bool:
    try:
        found = layers(image)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return found.numel() == features.numel() and torch.allclose(found.flatten(), features.flatten(), 1e-3, 1e-4)


class CachedMaps:
    """The maps that the frozen layers give for views of all training samples, in memory as float16.

    Args:
        trunk: The trunk, whose first layers are frozen.
        split: Its layers.
        samples: The number n of training samples.
        views: The number v of augmented views of each.
        render: Function of samples int64 [b] and whether to augment them; returns normalised images [b, c, h, w].
        layout: The memory format of the maps that are read.
        progress: Show a progress bar.
        chunk: Images per forward pass.

    Raises:
        RecipeError: `too-large` if the memory is too small.
    """

    def __init__(
        self,
        trunk: nn.Module,
        split: SplitTrunk,
        samples: int,
        views: int,
        render: Callable[[np.ndarray, bool], Tensor],
        layout: torch.memory_format,
        progress: bool = False,
        chunk: int = 64,
    ) -> None:
        self.views, self.layout, self._learning = views, layout, split.learning
        frozen = chain(trunk, split.frozen)
        training = trunk.training
        trunk.eval()
        with torch.no_grad(), Progress("cached views", samples * (views + 1), progress) as bar:
            channels, height, width = frozen(render(np.arange(1), False)).shape[1:]
            shape = views + 1, samples, height, width, channels
            _check_memory(shape)
            self.maps = torch.empty(shape, dtype=torch.float16)
            for view in range(views + 1):
                for start in range(0, samples, chunk):
                    rows = np.arange(start, min(start + chunk, samples))
                    self.maps[view, start : rows[-1] + 1] = frozen(render(rows, view > 0)).permute(0, 2, 3, 1)
                    bar.update(len(rows))
        trunk.train(training)

    def read(self, samples: np.ndarray, views: Tensor | None, device: torch.device) -> Tensor:
        """Return maps float32 [b, c, h, w].

        Args:
            samples: int64 [b].
            views: int64 [b], from 0; None for the samples without augmentation.
            device: The device of the maps.
        """
        numbers = torch.zeros(len(samples), dtype=torch.int64) if views is None else views.cpu() + 1
        maps = self.maps[numbers, torch.from_numpy(samples)].to(device).permute(0, 3, 1, 2)
        return maps.float().contiguous(memory_format=self.layout)

    def draw(self, samples: np.ndarray, size: int, part: slice, device: torch.device, forward: Forward) -> CachedViews:
        """Draw a random view of each sample.

        Args:
            samples: int64 [n], those of this process.
            size: The size of the whole batch.
            part: This process's part of it.
            device: The device of the maps.
            forward: Returns the features of maps by the trunk (None) or a copy of it.
        """
        return draw_views(lambda views: self.read(samples, views, device), self.views, size, part, forward, ADVICE)

    def features(self, trunk: nn.Module) -> nn.Sequential:
        """Return the layers that give pooled features [b, f] of maps, those of the trunk or of a copy of it."""
        return learning_layers(trunk, self._learning)


def _check_memory(shape: tuple[int, ...]) -> None:
    needed = 2 * int(np.prod(shape))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows has no sysconf, and macOS not this number
        return
    if needed > free:
        raise RecipeError(
            f"{shape[0] - 1} cached views of {shape[1]} images take {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB "
            f"are free. Set fewer data.views, or more backbone.frozen_stages, whose maps are smaller. {ADVICE}",
            code="too-large",
        )
