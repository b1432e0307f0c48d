"""Random changes of a batch of training images, as a few tensor operations on whatever device they lie on."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, interpolate, max_pool2d

from training.recipe import Augmentation


def augment(images: Tensor, turns: Tensor, how: Augmentation, side: int) -> Tensor:
    """Images float [n, c, s, s] in 0..1, turned by `turns` [n] quarters and randomly changed, as [n, c, side, side].

    Draws from torch's global generator of the images' device.
    """
    fine = side * how.oversample
    grid = affine_grid(_affine(turns, how), [len(images), 1, fine, fine], align_corners=False)
    if how.elastic:
        grid = grid + _displacement(len(images), fine, how, images.device)
    # grid_sample pads with zeros: shifting the background to zero pads with the background.
    out = grid_sample(images - how.background, grid, align_corners=False) + how.background
    if how.thicken:
        out = _thicken(out, how)
    return _tone(avg_pool2d(out, how.oversample), how)


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


def _displacement(n: int, side: int, how: Augmentation, device: torch.device) -> Tensor:
    """Smooth random displacements [n, side, side, 2], of another strength in each image (Simard et al. 2003, s. 2)."""
    strength = how.elastic * torch.rand(n, 1, 1, 1, device=device)
    coarse = strength * torch.randn(n, 2, how.elastic_grid, how.elastic_grid, device=device)
    return interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True).permute(0, 2, 3, 1)


def _thicken(images: Tensor, how: Augmentation) -> Tensor:
    """A random share, in half of the images 0, of the way to strokes one pixel wider on each side."""
    share = _uniform(len(images), how.thicken, images.device).clamp(min=0)[:, None, None, None]
    dark = how.background > 0.5
    wider = -max_pool2d(-images, 3, 1, 1) if dark else max_pool2d(images, 3, 1, 1)
    return images + (wider - images) * share


def _tone(images: Tensor, how: Augmentation) -> Tensor:
    if not how.contrast and not how.brightness:
        return images
    gain = 1 + _uniform(len(images), how.contrast, images.device)[:, None, None, None]
    offset = _uniform(len(images), how.brightness, images.device)[:, None, None, None]
    return ((images - 0.5) * gain + 0.5 + offset).clamp(0, 1)
