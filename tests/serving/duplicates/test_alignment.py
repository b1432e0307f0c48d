"""Alignment: correlations against a plain loop, and crops and frames whose place is known."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from serving.duplicates.alignment import (
    GreyPicture,
    InnerPictures,
    OuterPicture,
    correlations,
    find_inside,
    refined,
    shared_parts,
)


def picture(seed: int, size: tuple[int, int] = (200, 150)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def surfaces(pixels: np.ndarray, templates: list[np.ndarray]) -> list[np.ndarray]:
    """Return the correlations of templates that fit into a picture."""
    found = list(correlations(OuterPicture(pixels), InnerPictures(templates, max(pixels.shape))))
    return [surface for surface in found if surface is not None]


def test_correlations_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    pixels = rng.uniform(0, 255, (12, 15)).astype(np.float32)
    templates = [rng.uniform(0, 255, shape).astype(np.float32) for shape in ((5, 6), (12, 15), (12, 4))]
    for template, surface in zip(templates, surfaces(pixels, templates), strict=True):
        height, width = template.shape
        assert surface.shape == (13 - height, 16 - width)
        for (top, left), found in np.ndenumerate(surface):
            window = pixels[top : top + height, left : left + width].astype(np.float64).ravel()
            expected = np.corrcoef(window, template.astype(np.float64).ravel())[0, 1]
            assert found == pytest.approx(expected, abs=1e-4)


def test_flat_windows_and_templates_correlate_with_nothing():
    flat = np.full((8, 8), 40, np.float32)
    noise = np.random.default_rng(1).uniform(0, 255, (4, 4)).astype(np.float32)
    assert np.abs(surfaces(flat, [noise])[0]).max() == 0
    assert np.abs(surfaces(np.arange(64, dtype=np.float32).reshape(8, 8), [flat[:4, :4]])[0]).max() == 0


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.6, 1.7])
def test_the_place_of_a_crop_is_found_and_refined(scale: float, mirrored: bool):
    """Boxes are of the first picture, and of the mirror image of the second."""
    original, place = picture(2).convert("L"), (30, 20, 160, 120)
    crop = original.crop(place)
    crop = crop.resize((round(crop.width * scale), round(crop.height * scale)), Image.Resampling.BICUBIC)
    outer, inner = GreyPicture(original), GreyPicture(crop)
    assert find_inside(outer, inner) == pytest.approx(place, abs=6)
    small, large = (inner.mirrored, outer.mirrored) if mirrored else (inner, outer)
    (parts,) = [parts for parts in shared_parts(outer, small, mirrored) if parts.second_box == inner.whole]
    assert refined(parts).first_box == pytest.approx(place, abs=1.5)
    (parts,) = [parts for parts in shared_parts(inner, large, mirrored) if parts.first_box == inner.whole]
    assert refined(parts).second_box == pytest.approx(place, abs=1.5)


def test_other_pictures_and_whole_ones_share_no_part():
    original = GreyPicture(picture(3).convert("L"))
    for mirrored in (False, True):
        assert list(shared_parts(original, GreyPicture(picture(4).convert("L")), mirrored)) == []
    assert list(shared_parts(original, GreyPicture(original.image.resize((100, 75))), False)) == []


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (500, 2), (64, 64)])
def test_odd_sizes_and_flat_pictures_share_no_part(size: tuple[int, int]):
    other = GreyPicture(picture(6).convert("L"))
    for image in (Image.new("L", size, 9), picture(5, size).convert("L")):
        assert [*shared_parts(GreyPicture(image), other, False), *shared_parts(other, GreyPicture(image), True)] == []
