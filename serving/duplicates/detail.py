"""Agreement in detail of the part that two pictures may share: block by block, where there is something to compare.

The aligned parts are cut into blocks. A block has structure if its grey levels vary in either picture; such a block
agrees if its normalised correlation is high after a shift by at most `SHIFT` pixels. Flat paper, sky and frames tell
nothing, so that pictures without structure never agree.

Of a photograph, most blocks must agree: a caption or a watermark may cover some. Two documents of one form, two logos,
or two pictures on a background of one colour differ in a few strokes only. There the strokes of every block must agree:
the differences of neighbouring pixels, across and down, in which the lines of a table do not hide the text between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from zoo.data.perceptual_hash import Box

SIDE, FULL_SIDE = 128, 256
"""Longest side, in pixels, at which blocks and strokes are compared."""

LEAST_SIDE = 48
"""Longest side, in pixels, to which smaller parts are enlarged."""

BLOCKS, LEAST_BLOCK = 16, 8
"""Blocks along the longest side, and the least side of a block in pixels."""

SHIFT = 2
"""Pixels by which a block may lie elsewhere: alignment is not exact, and copies may be turned a little."""

STRUCTURE, STROKE = 5.0, 3.0
"""Standard deviations of grey levels and of their differences from which a block is compared: more than noise makes."""

BACKGROUND, BACKGROUND_LEVELS = 0.35, 1
"""Share of the pixels within so many grey levels of the commonest one that makes a background of one colour."""


@dataclass(frozen=True)
class PicturePair:
    """Parts of two pictures, of mode L, that may show the same: boxes in pixels of each."""

    first: Image.Image
    first_box: Box
    second: Image.Image
    second_box: Box

    def pixels(self, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Return both parts at one size, float32 [h, w]: `side`, or that of the part with fewer pixels."""
        (left, top, right, bottom), (left2, top2, right2, bottom2) = self.first_box, self.second_box
        longest = max(right - left, bottom - top)
        scale = min(side, max(LEAST_SIDE, min(longest, max(right2 - left2, bottom2 - top2)))) / longest
        size = max(LEAST_BLOCK, round((right - left) * scale)), max(LEAST_BLOCK, round((bottom - top) * scale))
        first = self.first.resize(size, Image.Resampling.BILINEAR, self.first_box)
        second = self.second.resize(size, Image.Resampling.BILINEAR, self.second_box)
        return np.asarray(first, np.float32), np.asarray(second, np.float32)


def block_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the correlations of all blocks with structure, of two pictures of one size, float32 [h, w]."""
    return correlations_of_blocks(_smooth(first), _smooth(second), STRUCTURE)


def stroke_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the correlations of the strokes of all blocks, of two pictures of one size, float32 [h, w]."""
    first, second = _smooth(first), _smooth(second)
    fields = ((np.gradient(first, axis=axis), np.gradient(second, axis=axis)) for axis in (0, 1))
    return np.concatenate([correlations_of_blocks(*strokes, STROKE) for strokes in fields])


def has_background(pixels: np.ndarray) -> bool:
    """Return whether a picture, [h, w], has a background of one colour."""
    counts = np.bincount(np.clip(np.rint(pixels), 0, 255).astype(np.int64).ravel(), minlength=256)
    near = np.convolve(counts, np.ones(2 * BACKGROUND_LEVELS + 1, np.int64), "same")
    return bool(near.max() >= BACKGROUND * pixels.size)


def correlations_of_blocks(first: np.ndarray, second: np.ndarray, least: float) -> np.ndarray:
    """Return the correlation after the best shift of each block whose deviation is above `least` in either picture."""
    height, width = first.shape
    side = max(LEAST_BLOCK, max(height, width) // BLOCKS)
    blocks, deviations = _blocks(first, side)
    compared = np.maximum(deviations, _blocks(second, side)[1]) > least
    blocks, deviations = blocks[compared], deviations[compared]
    best = np.full(len(blocks), -1.0)
    if not len(blocks):
        return best
    padded = np.pad(second, SHIFT, mode="edge")
    for down in range(2 * SHIFT + 1):
        for across in range(2 * SHIFT + 1):
            others, other_deviations = _blocks(padded[down : down + height, across : across + width], side, compared)
            products = np.einsum("ij,ij->i", blocks, others) / side**2
            best = np.maximum(best, products / np.maximum(deviations * other_deviations, 1e-3))
    return best


def _smooth(pixels: np.ndarray) -> np.ndarray:
    """Return the picture with the finest noise averaged away: weights 1, 2, 1 down and across."""
    padded = np.pad(pixels, 1, mode="edge")
    down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    return (down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]) / 16


def _blocks(pixels: np.ndarray, side: int, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of each whole block without their mean, [blocks, pixels], and their standard deviations."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    cut = pixels[: rows * side, : columns * side].reshape(rows, side, columns, side).swapaxes(1, 2)
    blocks = cut.reshape(rows * columns, side * side)
    blocks = blocks if chosen is None else blocks[chosen]
    blocks = blocks - blocks.mean(axis=1, keepdims=True)
    return blocks, np.sqrt(np.einsum("ij,ij->i", blocks, blocks) / blocks.shape[1])
