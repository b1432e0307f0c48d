"""Twenty distortions of a picture, each drawn by a seed: copies as people make them.

`copy_of(image, "crop-75", seed)` is the bytes of an image file. The same name, picture and seed give the same copy.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

Distortion = Callable[[Image.Image, np.random.Generator], Image.Image]

TEXTS = ("SAMPLE", "holiday 2019", "for sale", "(c) example.org", "Look at this!")
JPEG_QUALITY = 90
FORMATS: dict[str, tuple[str, int]] = {"jpeg-20": ("JPEG", 20), "jpeg-10": ("JPEG", 10), "webp-30": ("WEBP", 30)}
"""Formats and qualities of the files; the others are JPEGs of `JPEG_QUALITY`."""


def _same(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return image


def _scaled(factor: float) -> Distortion:
    def scale(image: Image.Image, draw: np.random.Generator) -> Image.Image:
        size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
        return image.resize(size, Image.Resampling.BICUBIC)

    return scale


def _cropped(share: float) -> Distortion:
    """Keep `share` of each side, at a random place."""

    def crop(image: Image.Image, draw: np.random.Generator) -> Image.Image:
        width, height = round(image.width * share), round(image.height * share)
        left = int(draw.integers(image.width - width + 1))
        top = int(draw.integers(image.height - height + 1))
        return image.crop((left, top, left + width, top + height))

    return crop


def _square(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Keep the square of the shorter side in the middle."""
    return ImageOps.fit(image, (min(image.size),) * 2, Image.Resampling.BICUBIC)


def _stretched(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Make the picture 10 to 30 % wider."""
    return image.resize((round(image.width * draw.uniform(1.1, 1.3)), image.height), Image.Resampling.BICUBIC)


def _framed(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Add a frame of one colour, 4 to 10 % of the shorter side."""
    border = round(min(image.size) * draw.uniform(0.04, 0.1))
    return ImageOps.expand(image, border, tuple(draw.integers(0, 256, 3).tolist()))


def _with_bars(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Add black bars above and below, 10 to 20 % of the height each."""
    bar = round(image.height * draw.uniform(0.1, 0.2))
    return ImageOps.expand(image, (0, bar), "black")


def _captioned(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Draw a line of white text on a dark strip over the lower 16 %."""
    image = image.copy()
    height = max(8, round(image.height * 0.16))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, image.height - height, image.width, image.height), (20, 20, 20))
    text = TEXTS[draw.integers(len(TEXTS))]
    pen.text((height // 4, image.height - height), text, (255, 255, 255), ImageFont.load_default(height * 0.75))
    return image


def _watermarked(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Write a half-transparent text over the middle, as wide as 80 % of the picture."""
    text = TEXTS[draw.integers(len(TEXTS))]
    font = ImageFont.load_default(40)
    left, top, right, bottom = font.getbbox(text)
    mark = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))
    ImageDraw.Draw(mark).text((2 - left, 2 - top), text, 150, font)
    width = round(image.width * 0.8)
    mark = mark.resize((width, max(1, round(mark.height * width / mark.width))))
    image = image.copy()
    place = (image.width - mark.width) // 2, int(draw.integers(max(1, image.height - mark.height)))
    image.paste((255, 255, 255), place, mark)
    return image


def _toned(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Change brightness, contrast and colour by up to 35 %."""
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhancer(image).enhance(draw.uniform(0.65, 1.35))
    return image


def _grey(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return image.convert("L").convert("RGB")


def _blurred(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Blur by a Gaussian of 0.8 % of the shorter side."""
    return image.filter(ImageFilter.GaussianBlur(min(image.size) * 0.008))


def _noisy(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Add normal noise of 12 grey levels."""
    pixels = np.asarray(image, np.float32) + draw.normal(0, 12, np.asarray(image).shape)
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def _rotated(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """Turn by 1 to 3 degrees either way, and cut the empty corners off."""
    angle = draw.uniform(1, 3) * draw.choice([-1, 1])
    turned = image.rotate(angle, Image.Resampling.BICUBIC)
    cut = round(np.tan(np.radians(abs(angle))) * max(image.size) / 2) + 1
    return turned.crop((cut, cut, image.width - cut, image.height - cut))


def _mirrored(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return ImageOps.mirror(image)


DISTORTIONS: dict[str, Distortion] = {
    "half": _scaled(1 / 2),
    "third": _scaled(1 / 3),
    "double": _scaled(2),
    "jpeg-20": _same,
    "jpeg-10": _same,
    "webp-30": _same,
    "stretched": _stretched,
    "tone": _toned,
    "grey": _grey,
    "blur": _blurred,
    "noise": _noisy,
    "caption": _captioned,
    "watermark": _watermarked,
    "frame": _framed,
    "bars": _with_bars,
    "crop-90": _cropped(0.9),
    "crop-75": _cropped(0.75),
    "square": _square,
    "rotation": _rotated,
    "mirror": _mirrored,
}


def copy_of(image: Image.Image, name: str, seed: int) -> bytes:
    """Return the image file of one distortion of an RGB picture."""
    draw = np.random.default_rng([seed, list(DISTORTIONS).index(name)])
    image_format, quality = FORMATS.get(name, ("JPEG", JPEG_QUALITY))
    out = BytesIO()
    DISTORTIONS[name](image, draw).save(out, image_format, quality=quality)
    return out.getvalue()
