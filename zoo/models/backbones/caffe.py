"""Weights that were trained with Caffe: what their images looked like, and how to make them take ours.

Caffe's ImageNet networks see BGR images on the scale 0..255 with the channels' means taken off and no scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes take the constants, and nothing that lists recipes loads torch
    from torch import Tensor

MEAN = (128 / 255, 117 / 255, 104 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)
"""The same for RGB images on the scale 0..1: `(image - MEAN) / STD` is the pixel on 0..255 without its mean."""


def convert_caffe(state: Mapping[str, Tensor], first_conv: str) -> dict[str, Tensor]:
    """A converted state dict for RGB images: the input channels of the convolution `first_conv` are reversed.

    Some conversions keep Caffe's shape [1, c] of what batch norms hold; it becomes [c].
    """
    out = {name: tensor.squeeze(0) if "_bn." in name else tensor for name, tensor in state.items()}
    weight = f"{first_conv}.weight"
    if weight in out:
        out[weight] = out[weight].flip(1)
    return out
