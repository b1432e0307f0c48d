"""Alignment of two pictures of which one may be a part of the other, as a crop is of its original.

The smaller one is laid over the larger at several scales; the place of the largest normalised cross-correlation wins
(Lewis 1995, Fast Normalized Cross-Correlation). Both directions are tried: a crop lies inside its original, and an
original inside its framed copy. Rotation and change of proportions are not searched for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from zoo.data.perceptual_hash import Box, hamming, perceptual_hash

COARSE, FINE = 48, 128
"""Longest side, in pixels, of the larger picture in the first and in the second search."""

STEP, LEAST_SCALE = 0.93, 0.5
"""Ratio of one scale to the one before, and the smallest: a crop of less than half of each side is not found."""

FINE_STEPS = (0.955, 0.98, 1.0, 1.02, 1.045)
"""Scales of the second search, relative to the best of the first."""

MIN_CORRELATION = 0.7
"""Correlation of the first search below which the second, which takes most of the time, is left out."""

WINDOWS = ((0.0, 1.0), (0.0, 0.75), (0.25, 1.0))
"""Upper and lower end of the parts of the shared part that are compared, as shares of its height: a caption may cover
the rest."""

FLAT = 1e-3
"""Norm of a window, in grey levels, below which it counts as flat and correlates with nothing."""


@dataclass(frozen=True)
class Placement:
    """Place of one picture inside another.

    Attributes:
        correlation: The normalised cross-correlation, from -1 to 1.
        scale: Pixels of the larger picture per pixel of the smaller.
        left, top: The place, in pixels of the larger picture.
    """

    correlation: float
    scale: float
    left: float
    top: float


def aligned_distance(first: Image.Image, second: Image.Image) -> int:
    """Return the smallest Hamming distance of the hashes of a part that both pictures, of mode L, may share.

    The shared part is the whole of both pictures, or the whole of one and its best place in the other. Of it, all or
    the upper or lower three quarters are compared.
    """
    distance = _distance(first, _whole(first), second, _whole(second))
    for outer, inner in ((first, second), (second, first)):
        if (place := find_inside(outer, inner)) is not None:
            right = min(outer.width, place.left + place.scale * inner.width)
            bottom = min(outer.height, place.top + place.scale * inner.height)
            box = place.left, place.top, right, bottom
            distance = min(distance, _distance(outer, box, inner, _whole(inner)))
    return distance


def _whole(image: Image.Image) -> Box:
    return 0, 0, image.width, image.height


def _distance(first: Image.Image, first_box: Box, second: Image.Image, second_box: Box) -> int:
    """Return the smallest distance of two parts among the `WINDOWS`."""

    def hashes(image: Image.Image, box: Box) -> np.ndarray:
        left, top, right, bottom = box
        rows = [(top + upper * (bottom - top), top + lower * (bottom - top)) for upper, lower in WINDOWS]
        return np.stack([perceptual_hash(image, (left, upper, right, lower)) for upper, lower in rows])

    return int(hamming(hashes(first, first_box), hashes(second, second_box)).min())


def find_inside(outer: Image.Image, inner: Image.Image) -> Placement | None:
    """Return the best place of the inner picture in the outer, both of mode L; None if nothing correlates."""
    whole = min(outer.width / inner.width, outer.height / inner.height)
    steps = int(np.log(LEAST_SCALE) / np.log(STEP)) + 1
    coarse = _search(outer, inner, COARSE, [whole * STEP**step for step in range(steps + 1)])
    if coarse is None or coarse.correlation < MIN_CORRELATION:
        return None
    scales = sorted({min(whole, coarse.scale * step) for step in FINE_STEPS})
    return _search(outer, inner, FINE, scales) or coarse


def _search(outer: Image.Image, inner: Image.Image, side: int, scales: list[float]) -> Placement | None:
    """Return the best place among these scales, of the outer picture reduced to `side`."""
    shrink = min(1.0, side / max(outer.size))
    width, height = (max(4, round(length * shrink)) for length in outer.size)
    pixels = np.asarray(outer.resize((width, height), Image.Resampling.BILINEAR), np.float32)
    small = inner
    if max(inner.size) > 2 * side:  # resizing a small picture many times is much faster
        small = inner.copy()
        small.thumbnail((2 * side, 2 * side), Image.Resampling.BILINEAR)
    found = []
    for scale in scales:
        size = round(inner.width * scale * shrink), round(inner.height * scale * shrink)
        if min(size) >= 4:
            template = small.resize((min(width, size[0]), min(height, size[1])), Image.Resampling.BILINEAR)
            found.append((scale, np.asarray(template, np.float32)))
    best = None
    for (scale, _), surface in zip(found, correlations(pixels, [template for _, template in found]), strict=True):
        top, left = np.unravel_index(int(surface.argmax()), surface.shape)
        value = float(surface[top, left])
        if best is None or value > best.correlation:
            best = Placement(value, scale, left * outer.width / width, top * outer.height / height)
    return best


def correlations(pixels: np.ndarray, templates: list[np.ndarray]) -> list[np.ndarray]:
    """Return the normalised cross-correlation of templates with all windows of their size.

    Args:
        pixels: The picture, float32 [h, w].
        templates: Pictures that are not larger, float32 [a, b].

    Returns:
        For each template the correlations by the window's top and left, [h - a + 1, w - b + 1].
    """
    pixels = pixels - pixels.mean()
    height, width = pixels.shape
    padded = np.zeros((len(templates), height, width), np.float32)
    for layer, template in zip(padded, templates, strict=True):
        layer[: template.shape[0], : template.shape[1]] = template - template.mean()
    norms = np.sqrt((padded**2).sum(axis=(1, 2)))
    products = np.fft.irfft2(np.fft.rfft2(pixels) * np.fft.rfft2(padded).conj(), (height, width))
    sums, squares = _integral(pixels), _integral(pixels**2)
    surfaces = []
    for template, norm, product in zip(templates, norms, products, strict=True):
        a, b = template.shape
        variance = _windows(squares, a, b) - _windows(sums, a, b) ** 2 / (a * b)
        window = np.sqrt(np.maximum(variance, 0))
        flat = (window < FLAT) | (norm < FLAT)
        scale = np.where(flat, 1, window * norm)
        surfaces.append(np.where(flat, 0, product[: height - a + 1, : width - b + 1] / scale))
    return surfaces


def _integral(values: np.ndarray) -> np.ndarray:
    """Return the sums, float64 [h + 1, w + 1], of all values above and to the left."""
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    sums[1:, 1:] = values.astype(np.float64).cumsum(axis=0).cumsum(axis=1)
    return sums


def _windows(sums: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the sum of each window of this size, from an integral image."""
    return sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
