"""Built-in data set `glyphs`: characters drawn on access from the DejaVu and STIX fonts that come with matplotlib.

A class is a character. Its pictures differ in font face, rotation, scale, position, colours, background and noise; most
of these are factors of the data set. Whole scripts are held out: the test split is Greek, Armenian, Georgian, Lao and
Hebrew. The characters are frozen in glyphs.json, chosen by their pictures such that no two of one split look alike, and
no test character looks like a training character (`tools/glyphs_alphabet.py` at commit ec918842).
"""

from __future__ import annotations

import importlib.util
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, radians, sin
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image, ImageFont

from zoo.data.dataset import Dataset
from zoo.errors import DatasetError, missing
from zoo.files import sha256_of

ALPHABET = Path(__file__).with_name("glyphs.json")
INSTANCES = 20
"""Default number of pictures per class, the same as in Omniglot."""

CATEGORIES = ("face", "ink", "background", "inverted", "pattern")
"""Factors that are indices: into FACES, COLOURS, COLOURS, (dark on light, light on dark), PATTERNS."""

MEASURES = ("angle", "scale", "noise")
"""Factors that are numbers: degrees, longer side of glyph / side of picture, standard deviation in grey levels."""

FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
)
"""Font faces; the factor `face` is an index into them."""

EM = 64
"""Pixels per em at which outlines are rasterised before they are rotated and scaled."""

SIZE = 40
"""Side of a picture in pixels."""

MAX_ANGLE = 15.0
"""Largest rotation in degrees to either side; the alphabet has no look-alikes within twice this angle."""

SCALES = (0.55, 0.8)
"""Range of the longer side of the upright glyph, relative to the side of the picture."""

MAX_SHIFT = 0.6
"""Largest shift from the centre in x and in y, as a part of the free space."""

PALETTE = {
    "red": ((150, 20, 30), (250, 190, 185)),
    "orange": ((150, 65, 0), (255, 205, 150)),
    "yellow": ((110, 90, 0), (250, 235, 140)),
    "green": ((0, 95, 35), (180, 235, 170)),
    "cyan": ((0, 85, 100), (165, 235, 240)),
    "blue": ((25, 45, 160), (185, 205, 255)),
    "purple": ((105, 20, 130), (230, 190, 250)),
    "grey": ((55, 55, 55), (225, 225, 225)),
}
"""Colour name -> its dark and its light tone as RGB. Ink and background have different colours and opposite tones."""

COLOURS = tuple(PALETTE)
"""Names of the colours; the factors `ink` and `background` are indices into them."""

PATTERNS = ("plain", "gradient", "stripes", "checks", "clouds")
"""Kinds of background; the factor `pattern` is an index into them."""

_TONES = np.array(list(PALETTE.values()), dtype=np.float32)  # [colour, dark or light, RGB]
_SUPERSAMPLING = 2
_PATTERN_DEPTH = 20.0  # grey levels to either side


@dataclass(frozen=True)
class Character:
    """Class of the data set: a character, its script and the faces that have it (indices into FACES)."""

    text: str
    script: str
    faces: tuple[int, ...]

    @property
    def code(self) -> str:
        """Code point, such as "U+0561"."""
        return f"U+{ord(self.text):04X}"

    @property
    def name(self) -> str:
        """Short Unicode name that is safe as a folder's name: "armenian-capital-ayb"."""
        return unicodedata.name(self.text).lower().replace(" letter", "").replace(" ", "-")


def load(
    split: str, data: str | Path | None = None, instances: int = INSTANCES, seed: int = 0, size: int = SIZE
) -> Dataset:
    """Return one split; its pictures, uint8 [size, size, 3], are drawn on access.

    A picture depends only on (seed, character, instance).

    Args:
        split: "train" or "test".
        data: Not used, since only the fonts are read; `zoo.data.load_dataset` refuses a folder.
        instances: Pictures per class.
        seed: Seed of the pictures.
        size: Side of a picture in pixels.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
        DatasetError: If its fonts differ from those of the published data set.
    """
    _check_fonts(_alphabet()["fonts"])
    classes = characters(split)
    images = GlyphImages(classes, instances, seed, size)
    return Dataset(
        name="glyphs",
        split=split,
        images=images,
        labels=np.repeat(np.arange(len(classes), dtype=np.int64), instances),
        classes=tuple(character.name for character in classes),
        sources=[f"glyphs/{split}/{character.code}/{i:02d}" for character in classes for i in range(instances)],
        factors=_factors(images),
    )


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, Any]:
    """Return the frozen choice of characters: `fonts` (face -> sha256), `groups`, and the criteria of the choice."""
    return json.loads(ALPHABET.read_text(encoding="utf-8"))


def characters(split: str) -> tuple[Character, ...]:
    """Return the classes of a split in the order of their code points."""
    groups = [group for group in _alphabet()["groups"] if group["split"] == split]
    classes = [Character(text, g["script"], tuple(g["faces"])) for g in groups for text in g["characters"]]
    return tuple(sorted(classes, key=lambda character: character.text))


def scripts() -> tuple[str, ...]:
    """Return the names of the scripts; the factor `script` is an index into them."""
    return tuple(dict.fromkeys(group["script"] for group in _alphabet()["groups"]))


class GlyphImages(Sequence[np.ndarray]):
    """Pictures that are drawn on access, `instances` of the first character, then of the next."""

    def __init__(self, characters: Sequence[Character], instances: int, seed: int, size: int) -> None:
        self.characters, self.instances, self.seed, self.size = characters, instances, seed, size

    def __len__(self) -> int:
        return len(self.characters) * self.instances

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        character, style, rng = self._start(index)
        return render(character.text, style, rng, self.size)

    def style(self, index: int) -> Style:
        """Return the style of a picture without drawing it."""
        return self._start(index)[1]

    def _start(self, index: int) -> tuple[Character, Style, np.random.Generator]:
        """Return a picture's character and style, and its random generator after the style was drawn."""
        class_index, instance = divmod(range(len(self))[index], self.instances)
        character = self.characters[class_index]
        rng = np.random.default_rng((self.seed, ord(character.text), instance))
        return character, _draw_style(rng, character.faces), rng


def _factors(images: GlyphImages) -> dict[str, np.ndarray]:
    """Return the known properties of each picture: categories as int64 [n], measures as float32 [n]."""
    styles = [images.style(i) for i in range(len(images))]
    script = [scripts().index(character.script) for character in images.characters]
    return {
        "script": np.repeat(np.array(script, dtype=np.int64), images.instances),
        **{name: np.array([getattr(s, name) for s in styles], dtype=np.int64) for name in CATEGORIES},
        **{name: np.array([getattr(s, name) for s in styles], dtype=np.float32) for name in MEASURES},
    }


# Drawing: a picture is drawn by a style of independent factors, as ink over a background.


@dataclass(frozen=True)
class Style:
    """Factors of a picture's appearance, apart from its character.

    Attributes:
        face: Index into FACES.
        angle: Rotation in degrees, counter-clockwise.
        scale: Longer side of the upright glyph relative to the side of the picture.
        shift: Shift in x and y as a part of the free space, -1 to 1.
        ink: Index into COLOURS.
        background: Index into COLOURS.
        inverted: Light ink on a dark background.
        pattern: Index into PATTERNS.
        noise: Standard deviation in grey levels.
    """

    face: int
    angle: float
    scale: float
    shift: tuple[float, float]
    ink: int
    background: int
    inverted: bool
    pattern: int
    noise: float


def _draw_style(rng: np.random.Generator, faces: Sequence[int]) -> Style:
    """Draw a random style; each factor is uniform and independent of the others, but ink and background differ."""
    ink_colour = int(rng.integers(len(COLOURS)))
    return Style(
        face=faces[int(rng.integers(len(faces)))],
        angle=float(rng.uniform(-MAX_ANGLE, MAX_ANGLE)),
        scale=float(rng.uniform(*SCALES)),
        shift=(float(rng.uniform(-MAX_SHIFT, MAX_SHIFT)), float(rng.uniform(-MAX_SHIFT, MAX_SHIFT))),
        ink=ink_colour,
        background=int(ink_colour + 1 + rng.integers(len(COLOURS) - 1)) % len(COLOURS),
        inverted=bool(rng.random() < 0.5),
        pattern=int(rng.integers(len(PATTERNS))),
        noise=float(rng.uniform(2, 14)),
    )


def render(character: str, style: Style, rng: np.random.Generator, size: int = SIZE) -> np.ndarray:
    """Draw a picture of a character.

    Args:
        character: The character to draw.
        style: The appearance of the character.
        rng: Draws the background's pattern and the noise.
        size: Side of the picture in pixels.

    Returns:
        The picture, uint8 [size, size, 3].
    """
    cover = ink_coverage(character, style, size)[..., None]
    ground = _TONES[style.background, int(not style.inverted)] + _PATTERN_DEPTH * _pattern(style.pattern, rng, size)
    picture = ground + cover * (_TONES[style.ink, int(style.inverted)] - ground)
    picture += style.noise * rng.standard_normal((size, size, 1), dtype=np.float32)
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def ink_coverage(character: str, style: Style, size: int = SIZE) -> np.ndarray:
    """Return the part of each pixel that is ink, float32 [size, size] in 0..1.

    The glyph is rotated, scaled and shifted; it is never cut.
    """
    glyph = glyph_image(character, FACES[style.face])
    fine = size * _SUPERSAMPLING
    scale = style.scale * fine / max(glyph.size)
    c, s = cos(radians(style.angle)), sin(radians(style.angle))
    width, height = (
        scale * (abs(c) * glyph.width + abs(s) * glyph.height),
        scale * (abs(s) * glyph.width + abs(c) * glyph.height),
    )
    x, y = fine / 2 + style.shift[0] * (fine - width) / 2, fine / 2 + style.shift[1] * (fine - height) / 2
    # Pillow maps output pixels back to input pixels: undo the shift, then the rotation and the scale.
    a, b = c / scale, -s / scale
    matrix = (a, b, glyph.width / 2 - a * x - b * y, -b, a, glyph.height / 2 + b * x - a * y)
    rotated = glyph.transform((fine, fine), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return np.asarray(rotated.reduce(_SUPERSAMPLING), dtype=np.float32) / 255


def _pattern(kind: int, rng: np.random.Generator, size: int) -> np.ndarray:
    """Return the brightness of a background, float32 [size, size, 1] or [1], within -1..1."""
    name = PATTERNS[kind]
    if name == "plain":
        return np.zeros(1, dtype=np.float32)
    if name == "clouds":
        return _clouds(rng, size)
    angle, phase, frequency = rng.uniform(0, pi), rng.uniform(0, 2 * pi), rng.uniform(2.5, 5)
    along, across = _rotated_axes(size, angle)
    if name == "gradient":
        field = along
    elif name == "stripes":
        field = np.sign(np.sin(pi * frequency * along + phase))
    else:
        field = np.sign(np.sin(pi * frequency * along + phase) * np.sin(pi * frequency * across + phase))
    return field[..., None].astype(np.float32)


def _rotated_axes(size: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return two perpendicular coordinates of every pixel; at angle 0 they range over -1..1."""
    line = np.linspace(-1, 1, size, dtype=np.float32)
    x, y = line[None, :], line[:, None]
    return cos(angle) * x + sin(angle) * y, cos(angle) * y - sin(angle) * x


def _clouds(rng: np.random.Generator, size: int) -> np.ndarray:
    coarse = Image.fromarray(rng.uniform(-1, 1, (5, 5)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))[..., None]


# Fonts


def font_folder() -> Path:
    """Return the folder of matplotlib's fonts, without importing it; raise `MissingDependencyError` without it."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise missing("matplotlib (its fonts)", "glyphs")
    return Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


def font_file(face: str) -> Path:
    """Return the path of a face's font file; raise `DatasetError` if it is missing."""
    path = font_folder() / f"{face}.ttf"
    if not path.is_file():
        raise DatasetError(
            f"the font file {path} is missing, so glyphs cannot be drawn. Reinstall matplotlib from its wheel: "
            "pip install --force-reinstall matplotlib",
            code="missing-file",
        )
    return path


def _check_fonts(sha256: Mapping[str, str]) -> None:
    """Raise `DatasetError` for a font file that differs from the one with which the alphabet was chosen."""
    for face, expected in sha256.items():
        path = font_file(face)
        actual = sha256_of(path)
        if actual != expected:
            raise DatasetError(
                f"the font file {path} has sha256 {actual}, not {expected}: its glyphs would differ from the published "
                "data set. matplotlib 3.8 to 3.11 as published on PyPI come with the expected fonts.",
                code="hash-mismatch",
            )


@lru_cache(maxsize=len(FACES))
def _load_font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout does no shaping, so that results are the same with and without libraqm.
    return ImageFont.truetype(font_file(face), EM, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=16384)
def glyph_image(character: str, face: str) -> Image.Image:
    """Return the upright glyph as coverage (mode L), cropped to its ink, with a border of 2 empty pixels."""
    mask = _load_font(face).getmask(character, "L")
    drawn = Image.frombytes("L", mask.size, bytes(mask))
    drawn = drawn.crop(drawn.getbbox())
    framed = Image.new("L", (drawn.width + 4, drawn.height + 4))
    framed.paste(drawn, (2, 2))
    return framed
