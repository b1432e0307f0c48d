"""Random augmentation of a batch of training images, as a few tensor operations on any device.

The changes are drawn for the whole batch and applied to a part of it, so that a batch that is spread over processes
changes as it would in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, interpolate, max_pool2d

from training.recipe import Augmentation

_TRIES = 10


def crop_boxes(aspects: Tensor, augmentation: Augmentation, share: float, squeeze: bool = False) -> Tensor:
    """Return boxes float [n, 4] (centre x, centre y, half width, half height), in -1..1 of the kept squares.

    Args:
        aspects: Width / height of the images, float [n].
        augmentation: The crop and its ranges.
        share: The side of the central window relative to the short side, if the recipe does not crop at random.
        squeeze: The central window is of the squeezed image.
    """
    if augmentation.crop == "none":
        aspects = torch.ones_like(aspects) if squeeze else aspects
        return _at(_window(aspects, share), torch.full((len(aspects), 2), 0.5, device=aspects.device))
    if augmentation.crop == "resized":
        sizes = _resized(aspects, augmentation)
    else:
        sizes = _window(torch.ones_like(aspects) if augmentation.crop == "squeezed" else aspects, augmentation.window)
    return _at(sizes, torch.rand(len(aspects), 2, device=aspects.device))


def _window(aspects: Tensor, share: float) -> Tensor:
    """Return width and height [n, 2], as shares of the image's, of a square of `share` times its short side."""
    return share * torch.stack([(1 / aspects).clamp(max=1), aspects.clamp(max=1)], 1)


def _resized(aspects: Tensor, augmentation: Augmentation) -> Tensor:
    """Draw width and height [n, 2] of parts of random area and proportions: the first of ten draws that fits."""
    n, device = len(aspects), aspects.device
    low, high = augmentation.area
    area = low + (high - low) * torch.rand(n, _TRIES, device=device)
    ratio = torch.exp(math.log(augmentation.ratio) * (2 * torch.rand(n, _TRIES, device=device) - 1)) / aspects[:, None]
    sizes = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 2)
    fits = (sizes <= 1).all(2)
    first = sizes[torch.arange(n, device=device), fits.int().argmax(1)]
    return torch.where(fits.any(1)[:, None], first, _largest(aspects, augmentation.ratio))


def _largest(aspects: Tensor, ratio: float) -> Tensor:
    """Return width and height [n, 2] of the largest part whose proportions are allowed."""
    shares = aspects.clamp(1 / ratio, ratio) / aspects
    return torch.stack([shares.clamp(max=1), (1 / shares).clamp(max=1)], 1)


def _at(sizes: Tensor, positions: Tensor) -> Tensor:
    """Return boxes of sizes [n, 2] at positions [n, 2], 0 to 1 of the remaining room."""
    return torch.cat([(1 - sizes) * (2 * positions - 1), sizes], 1)


@dataclass(frozen=True)
class Changes:
    """Random changes of n images; None for those that the recipe does not have.

    Attributes:
        affine: float [n, 2, 3], from output to input coordinates, both in -1..1.
        displacement: float [n, 2, g, g], on a coarse grid.
        thicken: float [n].
        tone: float [n, 2], gain and offset.
    """

    affine: Tensor
    displacement: Tensor | None = None
    thicken: Tensor | None = None
    tone: Tensor | None = None

    def part(self, rows: slice) -> Changes:
        """Return the changes of some of the images."""
        displacement, thicken, tone = (
            None if value is None else value[rows] for value in (self.displacement, self.thicken, self.tone)
        )
        return Changes(self.affine[rows], displacement, thicken, tone)


def draw_changes(
    quarter_turns: Tensor, aspects: Tensor, augmentation: Augmentation, share: float = 1.0, squeeze: bool = False
) -> Changes:
    """Draw random changes from torch's global generator of the device.

    Args:
        quarter_turns: Quarter turns of the images, float [n].
        aspects: Width / height of the images, float [n].
        augmentation: The ranges.
        share: The part of the short side that the central crop shows.
        squeeze: The central crop is of the squeezed image.
    """
    n, device = len(quarter_turns), quarter_turns.device
    affine = _inside(crop_boxes(aspects, augmentation, share, squeeze), _affine(quarter_turns, augmentation))
    return Changes(
        affine,
        _displacement(n, augmentation, device) if augmentation.elastic else None,
        _uniform(n, augmentation.thicken, device).clamp(min=0) if augmentation.thicken else None,
        _tone(n, augmentation, device) if augmentation.contrast or augmentation.brightness else None,
    )


def augment(images: Tensor, changes: Changes, augmentation: Augmentation, side: int) -> Tensor:
    """Return images with random changes, at another size.

    Args:
        images: Float [n, c, s, s], in 0..1.
        changes: The changes of the n images.
        augmentation: The oversampling, the background and the settings of the changes.
        side: Side of the result in pixels.

    Returns:
        The changed images, float [n, c, side, side].
    """
    fine = side * augmentation.oversample
    grid = affine_grid(changes.affine, [len(images), 1, fine, fine], align_corners=False)
    if changes.displacement is not None:
        smooth = interpolate(changes.displacement, size=(fine, fine), mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    # grid_sample pads with zeros: shifting the background to zero pads with the background.
    out = grid_sample(images - augmentation.background, grid, align_corners=False) + augmentation.background
    if changes.thicken is not None:
        out = _thicken(out, changes.thicken, augmentation)
    out = avg_pool2d(out, augmentation.oversample)
    if changes.tone is not None:
        gain, offset = changes.tone[:, :, None, None, None].unbind(1)
        out = ((out - 0.5) * gain + 0.5 + offset).clamp(0, 1)
    return out


def _uniform(n: int, extent: float, device: torch.device) -> Tensor:
    """Draw n numbers between -extent and extent."""
    return (torch.rand(n, device=device) * 2 - 1) * extent


def _affine(quarter_turns: Tensor, augmentation: Augmentation) -> Tensor:
    """Draw affine maps [n, 2, 3], from output to input coordinates: shift . rotation . shear . scale . mirror."""
    n, device = len(quarter_turns), quarter_turns.device
    angle = quarter_turns * (math.pi / 2) + _uniform(n, math.radians(augmentation.rotate), device)
    scale = torch.exp(_uniform(n, math.log(augmentation.scale), device))
    aspect = torch.exp(_uniform(n, math.log(augmentation.aspect) / 2, device))
    mirror = 1 - 2 * (torch.rand(n, device=device) < augmentation.flip).float()
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    stretch = torch.stack(
        [
            torch.stack([scale * aspect, _uniform(n, augmentation.shear, device)], 1),
            torch.stack([_uniform(n, augmentation.shear, device), scale / aspect], 1),
        ],
        1,
    )
    stretch[:, :, 0] *= mirror[:, None]
    shift = torch.stack([_uniform(n, augmentation.translate, device), _uniform(n, augmentation.translate, device)], 1)
    return torch.cat([rotation @ stretch, shift[:, :, None]], 2)


def _inside(boxes: Tensor, affine: Tensor) -> Tensor:
    """Return the affine maps [n, 2, 3] with their input coordinates taken within boxes [n, 4]."""
    inside = affine * boxes[:, 2:, None]
    inside[:, :, 2] += boxes[:, :2]
    return inside


def _displacement(n: int, augmentation: Augmentation, device: torch.device) -> Tensor:
    """Draw displacements [n, 2, g, g], of another strength for each image (Simard et al. 2003, section 2)."""
    strength = augmentation.elastic * torch.rand(n, 1, 1, 1, device=device)
    return strength * torch.randn(n, 2, augmentation.elastic_grid, augmentation.elastic_grid, device=device)


def _thicken(images: Tensor, share: Tensor, augmentation: Augmentation) -> Tensor:
    """Move a share [n] of the way to strokes that are one pixel wider on each side."""
    dark = augmentation.background > 0.5
    wider = -max_pool2d(-images, 3, 1, 1) if dark else max_pool2d(images, 3, 1, 1)
    return images + (wider - images) * share[:, None, None, None]


def _tone(n: int, augmentation: Augmentation, device: torch.device) -> Tensor:
    """Draw gain and offset [n, 2]."""
    return torch.stack(
        [1 + _uniform(n, augmentation.contrast, device), _uniform(n, augmentation.brightness, device)], 1
    )
