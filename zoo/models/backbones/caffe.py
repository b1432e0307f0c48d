"""Caffe weights: their normalisation, and their conversion to RGB images.

Caffe's ImageNet networks take BGR images on the scale 0..255 minus the channels' means, without further scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes take the constants, and nothing that lists recipes loads torch
    from torch import Tensor

MEAN = (128 / 255, 117 / 255, 104 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)
"""Normalisation of RGB images on the scale 0..1: `(image - MEAN) / STD` is the pixel on 0..255 minus its mean."""


def convert_caffe(state: Mapping[str, Tensor], first_conv: str) -> dict[str, Tensor]:
    """Convert a state dict to RGB images: reverse the input channels of the convolution `first_conv`.

    Some conversions keep Caffe's shape [1, c] of batch-norm tensors, which becomes [c].
    """
    converted = {name: tensor.squeeze(0) if "_bn." in name else tensor for name, tensor in state.items()}
    weight = f"{first_conv}.weight"
    if weight in converted:
        converted[weight] = converted[weight].flip(1)
    return converted
