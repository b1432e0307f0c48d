"""The font files behind the data set `glyphs`: the DejaVu and STIX families that come with matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from PIL import Image, ImageFont

from zoo.errors import DatasetError, missing
from zoo.files import sha256_of

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
"""Pixels per em at which outlines are rasterised before they are turned and scaled."""


def font_folder() -> Path:
    """Where matplotlib keeps its fonts, found without importing it. Raises `MissingDependencyError`."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise missing("matplotlib (its fonts)", "glyphs")
    return Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


def font_file(face: str) -> Path:
    path = font_folder() / f"{face}.ttf"
    if not path.is_file():
        raise DatasetError(
            f"the font file {path} is missing, so glyphs cannot be drawn. Reinstall matplotlib from its wheel: "
            "pip install --force-reinstall matplotlib"
        )
    return path


def check_fonts(sha256: Mapping[str, str]) -> None:
    """Raise `DatasetError` naming a font file whose contents are not the ones the alphabet was chosen from."""
    for face, expected in sha256.items():
        path = font_file(face)
        found = sha256_of(path)
        if found != expected:
            raise DatasetError(
                f"the font file {path} has sha256 {found}, not {expected}: its glyphs would differ from the published "
                "data set. matplotlib 3.8 to 3.11 as published on PyPI come with the expected fonts."
            )


@lru_cache(maxsize=len(FACES))
def _font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout draws each character alone: no shaping, hence the same with and without libraqm.
    return ImageFont.truetype(font_file(face), EM, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=16384)
def ink(character: str, face: str) -> Image.Image:
    """The upright glyph as coverage (mode L), cropped to its ink, with a border of 2 empty pixels."""
    mask = _font(face).getmask(character, "L")
    drawn = Image.frombytes("L", mask.size, bytes(mask))
    drawn = drawn.crop(drawn.getbbox())
    framed = Image.new("L", (drawn.width + 4, drawn.height + 4))
    framed.paste(drawn, (2, 2))
    return framed
