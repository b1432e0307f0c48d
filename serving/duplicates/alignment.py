"""Alignment of two pictures of which one may be a part of the other, as a crop is of its original.

The smaller one is laid over the larger at several scales; the place of the largest normalised cross-correlation wins
(Lewis 1995, Fast Normalized Cross-Correlation). Both directions are tried: a crop lies inside its original, and an
original inside its framed copy. Rotation and change of proportions are not searched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from PIL import Image, ImageOps

from serving.duplicates.detail import FULL_SIDE, PicturePair
from zoo.data.perceptual_hash import Box

COARSE, FINE = 48, 128
"""Longest side, in pixels, of the larger picture in the first and in the second search."""

STEP, STEPS = 0.93, 14
"""Ratio of one size of the smaller picture to the one before, and their number: a crop of less than 0.4 of the longest
side is not found."""

LEAST_SIDE = 12
"""Shorter side, in pixels, of the smaller picture in the first search, below which anything fits somewhere."""

FINE_STEPS = (0.955, 0.98, 1.0, 1.02, 1.045)
"""Scales of the second search, relative to the best of the first."""

MIN_CORRELATION = 0.7
"""Correlation of the first search below which the second, which takes most of the time, is left out."""

WHOLE = 0.96
"""Share of each side from which a part is the whole picture, which is compared without an alignment."""

FLAT = 1e-3
"""Norm of a window, in grey levels, below which it counts as flat and correlates with nothing."""

REFINEMENTS = ((2.0, False), (1.0, False), (0.5, True), (0.25, True))
"""Steps, in pixels, by which the edges of a place are moved, and whether to fit strokes instead of grey levels."""


@dataclass(frozen=True)
class Placement:
    """Best place of one picture in another: the normalised cross-correlation, and the box in pixels."""

    correlation: float
    left: int
    top: int
    width: int
    height: int


class GreyPicture:
    """A picture of mode L, with what the first search needs of it, computed once (130 kB)."""

    def __init__(self, image: Image.Image) -> None:
        self.image = image

    @property
    def whole(self) -> Box:
        """Return the box of the whole picture."""
        return 0, 0, self.image.width, self.image.height

    @cached_property
    def mirrored(self) -> GreyPicture:
        """Return the mirror image."""
        return GreyPicture(ImageOps.mirror(self.image))

    @cached_property
    def outer(self) -> OuterPicture:
        """Return the picture as the larger one of the first search."""
        return OuterPicture(_reduced(self.image, COARSE))

    @cached_property
    def inner(self) -> InnerPictures:
        """Return the picture as the smaller one of the first search."""
        small = self.image.copy()
        small.thumbnail((2 * COARSE, 2 * COARSE), Image.Resampling.BILINEAR)
        sizes = [COARSE * STEP**step for step in range(STEPS)]
        templates = [_reduced(small, size) for size in sizes]
        kept = [template for template in templates if min(template.shape) >= LEAST_SIDE]
        return InnerPictures(kept, COARSE)


class OuterPicture:
    """A picture, float32 [h, w], in which others are searched for."""

    def __init__(self, pixels: np.ndarray) -> None:
        pixels = pixels - pixels.mean()
        self.height, self.width = pixels.shape
        self.pixels, self._spectra = pixels, dict[int, np.ndarray]()
        self.sums, self.squares = _integral(pixels), _integral(pixels**2)

    def spectrum(self, side: int) -> np.ndarray:
        """Return the Fourier transform on a square of this side."""
        if side not in self._spectra:
            self._spectra[side] = np.fft.rfft2(self.pixels, (side, side))
        return self._spectra[side]


class InnerPictures:
    """Pictures, float32 [a, b], that are searched for in a larger one, whose longest side is `side`."""

    def __init__(self, templates: list[np.ndarray], side: int) -> None:
        self.side = side
        padded = np.zeros((len(templates), side, side), np.float32)
        for layer, template in zip(padded, templates, strict=True):
            layer[: template.shape[0], : template.shape[1]] = template - template.mean()
        self.sizes = [template.shape for template in templates]
        self.norms = np.sqrt((padded**2).sum(axis=(1, 2)))
        self.spectra = np.fft.rfft2(padded).conj()


def _reduced(image: Image.Image, side: float) -> np.ndarray:
    """Return the picture with `side` as its longest side, float32 [h, w]."""
    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)


def shared_parts(first: GreyPicture, second: GreyPicture, mirrored: bool) -> Iterator[PicturePair]:
    """Yield all of one picture with its best place in the other, for both orders; never the whole of both.

    mirrored: take the mirror image of the second picture. In a search the larger one is mirrored, because the smaller
    one is prepared at many sizes.
    """
    other = second.mirrored if mirrored else second
    box = find_inside(first.mirrored if mirrored else first, second)
    if box is not None and not _is_whole(first, box):
        left, top, right, bottom = box
        place = (first.image.width - right, top, first.image.width - left, bottom) if mirrored else box
        yield PicturePair(first.image, place, other.image, other.whole)
    if (box := find_inside(other, first)) is not None and not _is_whole(other, box):
        yield PicturePair(first.image, first.whole, other.image, box)


def _is_whole(picture: GreyPicture, box: Box) -> bool:
    left, top, right, bottom = box
    shares = (right - left) / picture.image.width, (bottom - top) / picture.image.height
    return min(shares) > WHOLE


def find_inside(outer: GreyPicture, inner: GreyPicture) -> Box | None:
    """Return the box of the best place of the inner picture in the outer; None if nothing correlates."""
    coarse = _best(outer.outer, inner.inner)
    if coarse is None or coarse.correlation < MIN_CORRELATION:
        return None
    side = min(FINE, max(outer.image.size))
    larger = OuterPicture(_reduced(outer.image, side))
    whole = min(larger.height / inner.image.height, larger.width / inner.image.width) * max(inner.image.size)
    found = max(coarse.width, coarse.height) * side / COARSE
    sides = sorted({min(whole, found * step) for step in FINE_STEPS})
    templates = [_reduced(inner.image, length)[: larger.height, : larger.width] for length in sides]
    fine = _best(larger, InnerPictures(templates, side))
    if fine is None:
        return None
    across, down = outer.image.width / larger.width, outer.image.height / larger.height
    right, bottom = (fine.left + fine.width) * across, (fine.top + fine.height) * down
    return fine.left * across, fine.top * down, min(outer.image.width, right), min(outer.image.height, bottom)


def _best(outer: OuterPicture, inner: InnerPictures) -> Placement | None:
    """Return the best place of any of the smaller pictures; None if none of them fits in."""
    best = None
    for (height, width), surface in zip(inner.sizes, correlations(outer, inner), strict=True):
        if surface is None:
            continue
        top, left = np.unravel_index(int(surface.argmax()), surface.shape)
        value = float(surface[top, left])
        if best is None or value > best.correlation:
            best = Placement(value, int(left), int(top), width, height)
    return best


def correlations(outer: OuterPicture, inner: InnerPictures) -> Iterator[np.ndarray | None]:
    """Yield the normalised cross-correlation of each of the smaller pictures [a, b] with all windows of its size.

    They are by the window's top and left, [h - a + 1, w - b + 1]; None for a picture that is too large.
    """
    side = inner.side
    products = np.fft.irfft2(outer.spectrum(side) * inner.spectra, (side, side))
    for (a, b), norm, product in zip(inner.sizes, inner.norms, products, strict=True):
        if a > outer.height or b > outer.width:
            yield None
            continue
        variance = _windows(outer.squares, a, b) - _windows(outer.sums, a, b) ** 2 / (a * b)
        window = np.sqrt(np.maximum(variance, 0))
        flat = (window < FLAT) | (norm < FLAT)
        scale = np.where(flat, 1, window * norm)
        yield np.where(flat, 0, product[: outer.height - a + 1, : outer.width - b + 1] / scale)


def refined(parts: PicturePair) -> PicturePair:
    """Return the parts with the edges of the placed one moved to where they fit best, at full resolution."""
    first = parts.first_box != (0, 0, *parts.first.size)
    image, box = (parts.first, parts.first_box) if first else (parts.second, parts.second_box)

    def at(edges: Box) -> PicturePair:
        return replace(parts, first_box=edges) if first else replace(parts, second_box=edges)

    def fit(edges: Box, strokes: bool) -> float:
        one, other = at(edges).pixels(FULL_SIDE)
        if not strokes:
            return _cosine(one - one.mean(), other - other.mean())
        return sum(_cosine(np.diff(one, axis=axis), np.diff(other, axis=axis)) for axis in (0, 1))

    moves = ((1, 0, 1, 0), (0, 1, 0, 1), (1, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 0), (0, 0, 0, 1))
    for step, strokes in REFINEMENTS:
        best = fit(box, strokes)
        for move in moves:
            for sign in (step, -step):
                edges = [edge + sign * moved for edge, moved in zip(box, move, strict=True)]
                moved = max(0.0, edges[0]), max(0.0, edges[1]), min(image.width, edges[2]), min(image.height, edges[3])
                if moved[2] - moved[0] >= 4 and moved[3] - moved[1] >= 4 and (value := fit(moved, strokes)) > best:
                    best, box = value, moved
    return at(box)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.vdot(first, second) / max(FLAT, np.linalg.norm(first) * np.linalg.norm(second)))


def _integral(values: np.ndarray) -> np.ndarray:
    """Return the sums, float64 [h + 1, w + 1], of all values above and to the left."""
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    sums[1:, 1:] = values.astype(np.float64).cumsum(axis=0).cumsum(axis=1)
    return sums


def _windows(sums: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the sum of each window of this size, from an integral image."""
    return sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
