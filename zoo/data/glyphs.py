"""Built-in data set `glyphs`: characters drawn on access from the fonts that come with matplotlib.

A class is a character. Its pictures differ in font face, rotation, scale, position, colours, background and noise; most
of these are factors of the data set. Whole scripts are held out: the test split is Greek, Armenian, Georgian, Lao and
Hebrew. The characters are frozen in glyphs.json (chosen by `tools/glyphs_alphabet.py`) such that no two of one split
look alike, and no test character looks like a training character.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.glyphs_render import SIZE, Style, check_fonts, draw_style, render

ALPHABET = Path(__file__).with_name("glyphs.json")
INSTANCES = 20
"""Default number of pictures per class, the same as in Omniglot."""


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
    check_fonts(alphabet()["fonts"])
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
def alphabet() -> dict[str, Any]:
    """Return the frozen choice of characters: `fonts` (face -> sha256), `groups`, and the criteria of the choice."""
    return json.loads(ALPHABET.read_text(encoding="utf-8"))


def characters(split: str) -> tuple[Character, ...]:
    """Return the classes of a split in the order of their code points."""
    groups = [group for group in alphabet()["groups"] if group["split"] == split]
    classes = [Character(text, g["script"], tuple(g["faces"])) for g in groups for text in g["characters"]]
    return tuple(sorted(classes, key=lambda character: character.text))


def scripts() -> tuple[str, ...]:
    """Return the names of the scripts; the factor `script` is an index into them."""
    return tuple(dict.fromkeys(group["script"] for group in alphabet()["groups"]))


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
        return character, draw_style(rng, character.faces), rng


def _factors(images: GlyphImages) -> dict[str, np.ndarray]:
    """Return the known properties of each picture: categories as int64 [n], measures as float32 [n]."""
    styles = [images.style(i) for i in range(len(images))]
    script = [scripts().index(character.script) for character in images.characters]
    return {
        "script": np.repeat(np.array(script, dtype=np.int64), images.instances),
        **{name: np.array([getattr(s, name) for s in styles], dtype=np.int64) for name in CATEGORIES},
        **{name: np.array([getattr(s, name) for s in styles], dtype=np.float32) for name in MEASURES},
    }


CATEGORIES = ("face", "ink", "background", "inverted", "pattern")
"""Factors that are indices: into FACES, COLOURS, COLOURS, (dark on light, light on dark), PATTERNS."""

MEASURES = ("angle", "scale", "noise")
"""Factors that are numbers: degrees, longer side of glyph / side of picture, standard deviation in grey levels."""
