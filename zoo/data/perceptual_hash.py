"""Perceptual hash of an image: 256 bits that resizing and recompression hardly change.

The bits are the signs of the 256 lowest frequencies, without the mean, of the cosine transform of the grey picture at
64 x 64 pixels. Mirroring a picture turns the sign of its odd horizontal frequencies and keeps the others, so that the
hash of the mirror image needs no pixels. (Zauner 2010, Implementation and Benchmarking of Perceptual Image Hash
Functions, section 3.2.1, compares 64 frequencies with their median instead.)
"""

from __future__ import annotations

import numpy as np
from PIL import Image

BITS = 256
HASH_BYTES = BITS // 8
SIDE = 64
"""Side, in pixels, of the square to which a picture is resized; its proportions are not kept."""


Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of a picture, in pixels."""


def _cosines(frequencies: int) -> np.ndarray:
    """Return the cosine transform of type II, float32 [frequencies, SIDE], without its positive factors."""
    positions = (np.arange(SIDE) + 0.5) / SIDE
    return np.cos(np.pi * np.arange(frequencies)[:, None] * positions).astype(np.float32)


def _lowest() -> tuple[np.ndarray, np.ndarray]:
    """Return vertical and horizontal frequencies, int64 [BITS], the lowest first, without the mean."""
    pairs = [(v, u) for v in range(SIDE) for u in range(SIDE)]
    pairs.sort(key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
    vertical, horizontal = np.array(pairs[1 : BITS + 1]).T
    return vertical, horizontal


_VERTICAL, _HORIZONTAL = _lowest()
_COSINES = _cosines(int(max(_VERTICAL.max(), _HORIZONTAL.max())) + 1)
MIRRORED: np.ndarray = np.packbits(_HORIZONTAL % 2 == 1)
"""Bits that mirroring turns, uint8 [32]."""


def perceptual_hash(image: Image.Image, box: Box | None = None) -> np.ndarray:
    """Return the hash, uint8 [32], of an upright image of mode L or RGB, or of its part in `box`, in pixels."""
    grey = image if image.mode == "L" else image.convert("L")
    small = grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    return hash_of_pixels(np.asarray(small, np.float32))


def hash_of_pixels(grey: np.ndarray) -> np.ndarray:
    """Return the hashes, uint8 [..., 32], of grey pixels, float32 [..., SIDE, SIDE]."""
    centred = grey - grey.mean(axis=(-2, -1), keepdims=True)
    spectrum = _COSINES @ centred @ _COSINES.T
    return np.packbits(spectrum[..., _VERTICAL, _HORIZONTAL] > 0, axis=-1)


def mirror_hash(hashes: np.ndarray) -> np.ndarray:
    """Return the hashes of the mirror images, uint8 [..., 32]."""
    return hashes ^ MIRRORED


def hamming(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the number of different bits of hashes, uint8 [..., 32], of broadcastable shapes; int64 [...]."""
    counts = np.bitwise_count(np.ascontiguousarray(first ^ second).view(np.uint64))
    # Adding the columns takes a quarter of the time of a sum along a short axis.
    return sum((counts[..., word] for word in range(1, counts.shape[-1])), counts[..., 0].astype(np.int64))
