"""Groups and best copies."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from serving.duplicates.groups import Member, detail_of, group, sharpness
from serving.duplicates.pictures import Measures, Pair
from serving.duplicates.rule import Evidence


def pair(first: int, second: int, distance: int = 5) -> Pair:
    return Pair(first, second, Evidence(0.9, distance, False, False))


def ranks(*details: float) -> dict[int, tuple[bool, float]]:
    return {item: (True, detail) for item, detail in enumerate(details, 1)}


def ids(groups: list[list[Member]]) -> list[list[int]]:
    return [[member.content for member in members] for members in groups]


def test_a_chain_does_not_join_what_was_not_confirmed():
    chain = [pair(1, 2), pair(2, 3), pair(3, 4)]
    assert ids(group(chain, ranks(9, 1, 1, 1))) == [[1, 2], [3, 4]]
    assert ids(group(chain, ranks(1, 9, 1, 1))) == [[2, 1, 3]]


def test_every_member_is_a_confirmed_copy_of_the_best():
    rng = np.random.default_rng(0)
    pairs = [
        pair(int(a), int(b), int(rng.integers(60)))
        for a, b in {tuple(sorted(p)) for p in rng.integers(0, 60, (90, 2))}
        if a < b
    ]
    detail = {item: (True, float(one)) for item, one in enumerate(rng.uniform(size=60))}
    confirmed = {(one.first, one.second): one.evidence for one in pairs}
    grouped = group(pairs, detail)
    members = [member.content for one in grouped for member in one]
    assert len(members) == len(set(members))
    for best, *others in grouped:
        assert best.evidence is None
        assert others
        for other in others:
            assert other.evidence == confirmed[tuple(sorted((best.content, other.content)))]
            assert detail[best.content] > detail[other.content]


def test_the_best_copy_comes_first_and_equal_ones_by_id():
    pairs = [pair(1, 2, 9), pair(1, 3, 4), pair(2, 3, 7)]
    assert ids(group(pairs, ranks(1, 1, 5))) == [[3, 1, 2]]
    assert ids(group(pairs, {})) == [[1, 3, 2]]
    gone = {**ranks(1, 2, 5), 3: (False, 5.0)}
    assert ids(group(pairs, gone)) == [[2, 3, 1]], "a copy whose file is gone is not the best"


@pytest.mark.parametrize(
    ("measures", "expected"),
    [(Measures(100, 50, 0.5), 2500.0), (Measures(None, None, 0.5), 0.0), (Measures(100, 50, None), 0.0)],
)
def test_detail_is_pixels_times_sharpness(measures: Measures, expected: float):
    assert detail_of(measures) == expected


def detail(image: Image.Image) -> float:
    return detail_of(Measures(image.width, image.height, sharpness(image)))


def test_reduced_and_blurred_copies_have_less_detail_and_enlarged_and_framed_ones_no_more():
    noise = np.random.default_rng(1).normal(size=(256, 320))
    across, down = np.fft.rfftfreq(320), np.fft.fftfreq(256)[:, None]
    fractal = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(1 / 320, np.hypot(across, down)), noise.shape)
    pixels = 128 + 40 * (fractal - fractal.mean()) / fractal.std()
    original = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    best = detail(original)
    assert best > 0
    assert detail(original.resize((160, 128), Image.Resampling.LANCZOS)) < best
    assert detail(original.resize((640, 512), Image.Resampling.BICUBIC)) == pytest.approx(best, rel=0.25)
    assert detail(original.filter(ImageFilter.GaussianBlur(2))) < best
    assert detail(ImageOps.expand(original, 32, 90)) == pytest.approx(best, rel=0.25)


def test_flat_and_tiny_pictures_have_no_sharpness():
    for image in (Image.new("L", (100, 100), 30), Image.new("RGB", (2, 50)), Image.new("L", (1, 1))):
        assert sharpness(image) == 0
