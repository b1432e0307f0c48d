"""Which part of an image a training view shows, as boxes in -1..1 of the square that the image is kept as."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.recipe import Augmentation

_TRIES = 10


def crop_boxes(aspects: Tensor, how: Augmentation, share: float) -> Tensor:
    """Boxes float [n, 4] (centre x, centre y, half width, half height) for images of `aspects` [n], width / height.

    share: the side of the central window relative to the short side, where the recipe crops nothing at random.
    """
    if how.crop == "none":
        return _at(_window(aspects, share), torch.full((len(aspects), 2), 0.5, device=aspects.device))
    if how.crop == "resized":
        sizes = _resized(aspects, how)
    else:
        sizes = _window(torch.ones_like(aspects) if how.crop == "squeezed" else aspects, how.window)
    return _at(sizes, torch.rand(len(aspects), 2, device=aspects.device))


def _window(aspects: Tensor, share: float) -> Tensor:
    """Width and height [n, 2], as shares of the image's, of a square of `share` times its short side."""
    return share * torch.stack([(1 / aspects).clamp(max=1), aspects.clamp(max=1)], 1)


def _resized(aspects: Tensor, how: Augmentation) -> Tensor:
    """Width and height [n, 2] of parts of random area and proportions: the first of ten draws that fits the image."""
    n, device = len(aspects), aspects.device
    low, high = how.area
    area = low + (high - low) * torch.rand(n, _TRIES, device=device)
    ratio = torch.exp(math.log(how.ratio) * (2 * torch.rand(n, _TRIES, device=device) - 1)) / aspects[:, None]
    sizes = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 2)
    fits = (sizes <= 1).all(2)
    first = sizes[torch.arange(n, device=device), fits.int().argmax(1)]
    return torch.where(fits.any(1)[:, None], first, _largest(aspects, how.ratio))


def _largest(aspects: Tensor, ratio: float) -> Tensor:
    """Width and height [n, 2] of the largest part whose proportions are allowed."""
    kept = aspects.clamp(1 / ratio, ratio) / aspects
    return torch.stack([kept.clamp(max=1), (1 / kept).clamp(max=1)], 1)


def _at(sizes: Tensor, places: Tensor) -> Tensor:
    """Boxes of these sizes [n, 2] at `places` [n, 2], 0 to 1 of the room that is left."""
    return torch.cat([(1 - sizes) * (2 * places - 1), sizes], 1)
