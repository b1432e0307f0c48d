"""Pictures that look alike and are not copies: other documents of one form, other marks, codes, charts and scenes.

`draw("invoice", seed)` is one picture; the same name and seed give the same picture. `LOOK_ALIKES` names all kinds.
`resave(picture, "half")` is a copy of a picture, as `COPIES` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Draw = Callable[[np.random.Generator], Image.Image]

WORDS = np.array(
    ["amount", "order", "seed", "soil", "pot", "garden", "path", "water", "light", "price", "tax", "total", "street"]
)
COLOURS = ("#c0392b", "#2980b9", "#27ae60", "#8e44ad", "#d35400", "#16a085", "#2c3e50")


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, count))


def _noisy(image: Image.Image, rng: np.random.Generator, deviation: float) -> Image.Image:
    """Add the noise of a scanner or a camera, in grey levels."""
    pixels = np.asarray(image, np.float32)
    return Image.fromarray(np.clip(np.rint(pixels + rng.normal(0, deviation, pixels.shape)), 0, 255).astype(np.uint8))


def _form(rng: np.random.Generator, rows: np.random.Generator) -> Image.Image:
    """Return an invoice: its number and total by `rng`, its rows by `rows`."""
    page = Image.new("L", (827, 1169), 255)
    pen = ImageDraw.Draw(page)
    pen.text((60, 50), "Green Corner Garden Shop", 0, _font(34))
    pen.line((60, 105, 767, 105), 0, 3)
    pen.text((60, 200), f"Invoice {rng.integers(10_000, 99_999)}", 0, _font(34))
    for row in range(10):
        top = 320 + 42 * row
        pen.rectangle((60, top, 767, top + 42), outline=0)
        pen.text((70, top + 10), _words(rows, 4), 0, _font(17))
        pen.text((640, top + 10), f"{rows.uniform(1, 9999):.2f}", 0, _font(17))
    pen.text((520, 800), f"Total {rng.uniform(100, 99_999):.2f}", 0, _font(34))
    return page


def _invoice(rng: np.random.Generator) -> Image.Image:
    return _noisy(_form(rng, rng), rng, 4)


def _numbers(rng: np.random.Generator) -> Image.Image:
    """Return an invoice of which only the number and the total are its own."""
    return _form(rng, np.random.default_rng(0))


def _page(rng: np.random.Generator) -> Image.Image:
    """Return a scanned page of text."""
    page = Image.new("L", (827, 1169), 245)
    pen = ImageDraw.Draw(page)
    for top in range(90, 1060, 28):
        pen.text((80, top), _words(rng, int(rng.integers(10, 14)))[:78], 20, _font(18))
    return _noisy(page, rng, 4)


def _screenshot(rng: np.random.Generator) -> Image.Image:
    """Return a list of messages in an application."""
    screen = Image.new("RGB", (540, 960), "#f4f4f4")
    pen = ImageDraw.Draw(screen)
    pen.rectangle((0, 0, 540, 90), "#075e54")
    pen.text((30, 28), "Messages", "white", _font(32))
    for row in range(9):
        top = 100 + 90 * row
        pen.rectangle((0, top, 540, top + 84), "white")
        pen.ellipse((16, top + 12, 76, top + 72), str(rng.choice(COLOURS)))
        pen.text((94, top + 14), _words(rng, 2), "black", _font(22))
        pen.text((94, top + 46), _words(rng, 4), "#777777", _font(18))
    pen.rectangle((0, 910, 540, 960), "#dddddd")
    return screen


def _matrix_code(rng: np.random.Generator) -> Image.Image:
    """Return a square of 29 x 29 modules with the three marks of a QR code."""
    modules = rng.integers(0, 2, (29, 29))
    mark = np.ones((8, 8), int)
    mark[:7, :7] = 0
    mark[1:6, 1:6] = 1
    mark[2:5, 2:5] = 0
    modules[:8, :8], modules[:8, -8:], modules[-8:, :8] = mark, mark[:, ::-1], mark[::-1]
    modules = np.pad(modules, 4, constant_values=1).astype(np.uint8) * 255
    return Image.fromarray(modules).resize((370, 370), Image.Resampling.NEAREST)


def _bar_code(rng: np.random.Generator) -> Image.Image:
    code = Image.new("L", (400, 220), 255)
    pen = ImageDraw.Draw(code)
    left = 30
    while left < 360:
        width = int(rng.integers(1, 5)) * 3
        pen.rectangle((left, 20, left + width - 1, 170), 0)
        left += width + int(rng.integers(1, 5)) * 3
    pen.text((60, 180), " ".join(map(str, rng.integers(0, 10, 13))), 0, _font(22))
    return code


def _axes(pen: ImageDraw.ImageDraw) -> None:
    pen.text((220, 12), "Sales by month", "black", _font(24))
    pen.line((60, 50, 60, 420, 620, 420), "black", 2)
    for tick in range(6):
        pen.line((60, 60 + 60 * tick, 620, 60 + 60 * tick), "#dddddd")
        pen.text((20, 50 + 60 * tick), str(100 - 20 * tick), "black", _font(16))


def _bar_chart(rng: np.random.Generator) -> Image.Image:
    chart = Image.new("RGB", (640, 480), "white")
    pen = ImageDraw.Draw(chart)
    _axes(pen)
    for month in range(12):
        pen.rectangle((72 + 45 * month, 420 - int(rng.integers(30, 350)), 102 + 45 * month, 419), COLOURS[1])
    return chart


def _line_chart(rng: np.random.Generator) -> Image.Image:
    chart = Image.new("RGB", (640, 480), "white")
    pen = ImageDraw.Draw(chart)
    _axes(pen)
    levels = 240 + np.cumsum(rng.normal(0, 25, 56))
    pen.line([(60 + 10 * step, float(np.clip(y, 60, 415))) for step, y in enumerate(levels)], COLOURS[0], 3)
    return chart


def _icon(rng: np.random.Generator) -> Image.Image:
    """Return a shape of one colour on white."""
    icon = Image.new("RGB", (256, 256), "white")
    pen = ImageDraw.Draw(icon)
    angles = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 9))))
    radii = rng.uniform(50, 110, len(angles))
    pen.polygon([(128 + r * np.cos(a), 128 + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)], COLOURS[6])
    pen.ellipse((118, 118, 138, 138), "white")
    return icon


def _mark(rng: np.random.Generator) -> Image.Image:
    """Return a word mark: white or black letters on transparency."""
    ink = (255,) * 4 if rng.integers(2) else (0, 0, 0, 255)
    mark = Image.new("RGBA", (600, 300), (0, 0, 0, 0))
    letters = "".join(rng.choice(list("abcdefghiklmnoprstuvz"), 5))
    ImageDraw.Draw(mark).text((60, 100), letters, ink, _font(90))
    return mark


def scene(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Return a random picture with the spectrum of photographs, RGB."""
    width, height = size
    frequency = np.maximum(1 / width, np.hypot(np.fft.rfftfreq(width), np.fft.fftfreq(height)[:, None]))
    planes = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(3, height, width))) / frequency**1.2, (height, width))
    pixels = 128 + 45 * (planes - planes.mean()) / planes.std()
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0).copy())


def _product(rng: np.random.Generator) -> Image.Image:
    """Return a bottle on white; its label and colour differ."""
    shot = Image.new("RGB", (600, 600), "white")
    pen = ImageDraw.Draw(shot)
    colour = str(rng.choice(COLOURS))
    pen.rounded_rectangle((220, 180, 380, 540), 30, colour)
    pen.rectangle((270, 80, 330, 180), colour)
    pen.rectangle((230, 300, 370, 450), "#eeeeee")
    for line in range(3):
        pen.text((240, 310 + 45 * line), _words(rng, 1), "black", _font(36))
    return shot.filter(ImageFilter.GaussianBlur(1))


def _framed(rng: np.random.Generator) -> Image.Image:
    """Return a small photograph in the middle of a white square."""
    square = Image.new("RGB", (800, 800), "white")
    square.paste(scene(rng, (220, 150)), (290, 325))
    return square


def _night(rng: np.random.Generator) -> Image.Image:
    """Return a dark picture with a few lights."""
    dark = Image.new("RGB", (640, 480), (6, 6, 12))
    pen = ImageDraw.Draw(dark)
    for x, y, radius in zip(*rng.uniform(0, 480, (2, 12)), rng.uniform(2, 7, 12), strict=True):
        pen.ellipse((1.3 * x - radius, y - radius, 1.3 * x + radius, y + radius), (250, 220, 160))
    return _noisy(dark.filter(ImageFilter.GaussianBlur(2)), rng, 3)


def _sky(rng: np.random.Generator) -> Image.Image:
    """Return a sky: a gradient between two colours, with noise."""
    upper, lower = np.array([[80, 130, 200], [190, 210, 235]]) + rng.normal(0, 12, (2, 3))
    share = np.linspace(0, 1, 480)[:, None, None]
    pixels = (1 - share) * upper + share * lower + np.zeros((480, 640, 3))
    return _noisy(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), rng, 2)


def _flat(rng: np.random.Generator) -> Image.Image:
    return Image.new("RGB", (600, 450), tuple(rng.integers(0, 256, 3).tolist()))


def _map(rng: np.random.Generator) -> Image.Image:
    """Return a map of streets, parks and a river."""
    land = Image.new("RGB", (600, 600), "#f2efe9")
    pen = ImageDraw.Draw(land)
    for x, y in rng.uniform(0, 520, (5, 2)):
        pen.rectangle((x, y, x + rng.uniform(40, 120), y + rng.uniform(40, 120)), "#c8e6c0")
    pen.line([(x, 300 + 150 * np.sin(x / 90 + rng.normal())) for x in range(0, 640, 90)], "#a5c8e8", 26)
    for x0, y0, x1, y1 in rng.uniform(-100, 700, (26, 4)):
        pen.line((x0, y0, x1, y1), "#bbbbbb", 9)
        pen.line((x0, y0, x1, y1), "white", 6)
    for x, y in rng.uniform(20, 500, (8, 2)):
        pen.text((x, y), _words(rng, 1), "#555555", _font(18))
    return land


LOOK_ALIKES: dict[str, Draw] = {
    "invoice": _invoice,
    "numbers": _numbers,
    "page": _page,
    "screenshot": _screenshot,
    "matrix-code": _matrix_code,
    "bar-code": _bar_code,
    "bar-chart": _bar_chart,
    "line-chart": _line_chart,
    "icon": _icon,
    "mark": _mark,
    "product": _product,
    "framed": _framed,
    "night": _night,
    "sky": _sky,
    "flat": _flat,
    "map": _map,
}

WITHOUT_STRUCTURE = ("sky", "flat")
"""Kinds of which only identical pixels can be told to be copies."""

COPIES = ("half", "jpeg-40", "crop-90")
"""Copies that people make of documents, marks and pictures on white."""


def draw(kind: str, seed: int) -> Image.Image:
    """Return one picture of a kind."""
    return LOOK_ALIKES[kind](np.random.default_rng([seed, list(LOOK_ALIKES).index(kind)]))


def resave(picture: Image.Image, copy: str) -> bytes:
    """Return the image file of a copy: of half the size, a JPEG of quality 40, or without 5 % at each edge."""
    width, height = picture.size
    if copy == "half":
        picture = picture.resize((width // 2, height // 2), Image.Resampling.LANCZOS)
    elif copy == "crop-90":
        picture = picture.crop((width // 20, height // 20, width - width // 20, height - height // 20))
    out = BytesIO()
    if picture.mode == "RGBA":
        picture.save(out, "PNG")
    else:
        picture.save(out, "JPEG", quality=40 if copy == "jpeg-40" else 90)
    return out.getvalue()
