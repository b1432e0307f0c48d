"""Batch augmentation.

Which part of an image a training view shows, as boxes in -1..1 of the square that the image is kept as.

Random changes of a batch of training images, as a few tensor operations on whatever device they lie on.

What changes is drawn for the whole batch and applied to a part of it, so that a batch that is spread over processes is
changed as it would be in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, interpolate, max_pool2d

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


@dataclass(frozen=True)
class Changes:
    """What is done to n images. affine: [n, 2, 3], from output to input coordinates, both in -1..1; the others where
    the recipe has them: displacement [n, 2, g, g] on a coarse grid, thicken [n], tone [n, 2] (gain and offset)."""

    affine: Tensor
    displacement: Tensor | None = None
    thicken: Tensor | None = None
    tone: Tensor | None = None

    def part(self, rows: slice) -> Changes:
        """Those of some of the images."""
        displacement, thicken, tone = (
            None if value is None else value[rows] for value in (self.displacement, self.thicken, self.tone)
        )
        return Changes(self.affine[rows], displacement, thicken, tone)


def draw_changes(turns: Tensor, aspects: Tensor, how: Augmentation, share: float = 1.0) -> Changes:
    """Random changes of images that are turned by `turns` [n] quarters and were `aspects` [n] as wide as high.

    share: the part of the short side that the central crop shows. Draws from torch's global generator of the device.
    """
    n, device = len(turns), turns.device
    affine = _inside(crop_boxes(aspects, how, share), _affine(turns, how))
    return Changes(
        affine,
        _displacement(n, how, device) if how.elastic else None,
        _uniform(n, how.thicken, device).clamp(min=0) if how.thicken else None,
        _tone(n, how, device) if how.contrast or how.brightness else None,
    )


def augment(images: Tensor, changes: Changes, how: Augmentation, side: int) -> Tensor:
    """Images float [n, c, s, s] in 0..1, changed, as [n, c, side, side]."""
    fine = side * how.oversample
    grid = affine_grid(changes.affine, [len(images), 1, fine, fine], align_corners=False)
    if changes.displacement is not None:
        smooth = interpolate(changes.displacement, size=(fine, fine), mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    # grid_sample pads with zeros: shifting the background to zero pads with the background.
    out = grid_sample(images - how.background, grid, align_corners=False) + how.background
    if changes.thicken is not None:
        out = _thicken(out, changes.thicken, how)
    out = avg_pool2d(out, how.oversample)
    if changes.tone is not None:
        gain, offset = changes.tone[:, :, None, None, None].unbind(1)
        out = ((out - 0.5) * gain + 0.5 + offset).clamp(0, 1)
    return out


def _uniform(n: int, extent: float, device: torch.device) -> Tensor:
    """n numbers between -extent and extent."""
    return (torch.rand(n, device=device) * 2 - 1) * extent


def _affine(turns: Tensor, how: Augmentation) -> Tensor:
    """[n, 2, 3]: from output to input coordinates, both in -1..1: shift . rotation . shear . scale . mirror."""
    n, device = len(turns), turns.device
    angle = turns * (math.pi / 2) + _uniform(n, math.radians(how.rotate), device)
    scale = torch.exp(_uniform(n, math.log(how.scale), device))
    aspect = torch.exp(_uniform(n, math.log(how.aspect) / 2, device))
    mirror = 1 - 2 * (torch.rand(n, device=device) < how.flip).float()
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    stretch = torch.stack(
        [
            torch.stack([scale * aspect, _uniform(n, how.shear, device)], 1),
            torch.stack([_uniform(n, how.shear, device), scale / aspect], 1),
        ],
        1,
    )
    stretch[:, :, 0] *= mirror[:, None]
    shift = torch.stack([_uniform(n, how.translate, device), _uniform(n, how.translate, device)], 1)
    return torch.cat([rotation @ stretch, shift[:, :, None]], 2)


def _inside(boxes: Tensor, affine: Tensor) -> Tensor:
    """The affine maps [n, 2, 3], their input coordinates taken within boxes [n, 4]."""
    inside = affine * boxes[:, 2:, None]
    inside[:, :, 2] += boxes[:, :2]
    return inside


def _displacement(n: int, how: Augmentation, device: torch.device) -> Tensor:
    """Random displacements [n, 2, g, g], of another strength in each image (Simard et al. 2003, section 2)."""
    strength = how.elastic * torch.rand(n, 1, 1, 1, device=device)
    return strength * torch.randn(n, 2, how.elastic_grid, how.elastic_grid, device=device)


def _thicken(images: Tensor, share: Tensor, how: Augmentation) -> Tensor:
    """A share [n] of the way to strokes one pixel wider on each side."""
    dark = how.background > 0.5
    wider = -max_pool2d(-images, 3, 1, 1) if dark else max_pool2d(images, 3, 1, 1)
    return images + (wider - images) * share[:, None, None, None]


def _tone(n: int, how: Augmentation, device: torch.device) -> Tensor:
    """Gain and offset [n, 2]."""
    return torch.stack([1 + _uniform(n, how.contrast, device), _uniform(n, how.brightness, device)], 1)
