"""The embedded data set `glyphs`: characters drawn on the fly from the fonts that come with matplotlib.

A class is a character, an instance one picture of it: font face x rotation x scale x place x colours x background x
noise, all kept as factors. Whole scripts are held out: test = Greek, Armenian, Georgian, Lao and Hebrew. The
characters are frozen in glyphs.json (chosen by `tools/glyphs_alphabet.py`), so that neither split holds two that
look alike and no test character looks like one of training.
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
"""Pictures per class unless asked otherwise, as many as Omniglot has."""


@dataclass(frozen=True)
class Character:
    """A class: the character, its script and the faces that have it (indices into FACES)."""

    text: str
    script: str
    faces: tuple[int, ...]

    @property
    def code(self) -> str:
        return f"U+{ord(self.text):04X}"

    @property
    def name(self) -> str:
        """Its Unicode name, short and safe as a folder's name: "armenian-capital-ayb"."""
        return unicodedata.name(self.text).lower().replace(" letter", "").replace(" ", "-")


def load(
    split: str, data: str | Path | None = None, instances: int = INSTANCES, seed: int = 0, size: int = SIZE
) -> Dataset:
    """The glyphs of one split, `instances` pictures of each class, uint8 [size, size, 3], drawn when asked for.

    A picture depends on (seed, character, instance) alone. `data` is not used: nothing is read but the fonts.
    Raises `MissingDependencyError` without matplotlib, `DatasetError` for other fonts than the published ones.
    """
    check_fonts(alphabet()["fonts"])
    drawn = characters(split)
    images = GlyphImages(drawn, instances, seed, size)
    return Dataset(
        name="glyphs",
        split=split,
        images=images,
        labels=np.repeat(np.arange(len(drawn), dtype=np.int64), instances),
        classes=tuple(character.name for character in drawn),
        sources=[f"glyphs/{split}/{character.code}/{i:02d}" for character in drawn for i in range(instances)],
        factors=_factors(images),
    )


@lru_cache(maxsize=1)
def alphabet() -> dict[str, Any]:
    """The frozen choice of characters: `fonts` (face -> sha256), `groups`, and how they were chosen."""
    return json.loads(ALPHABET.read_text(encoding="utf-8"))


def characters(split: str) -> tuple[Character, ...]:
    """The classes of a split in the order of their code points."""
    groups = [group for group in alphabet()["groups"] if group["split"] == split]
    found = [Character(text, g["script"], tuple(g["faces"])) for g in groups for text in g["characters"]]
    return tuple(sorted(found, key=lambda character: character.text))


def scripts() -> tuple[str, ...]:
    """Names of the scripts; the factor `script` is an index into them."""
    return tuple(dict.fromkeys(group["script"] for group in alphabet()["groups"]))


class GlyphImages(Sequence[np.ndarray]):
    """Pictures drawn on access, `instances` of each character in turn."""

    def __init__(self, drawn: Sequence[Character], instances: int, seed: int, size: int) -> None:
        self.characters, self.instances, self.seed, self.size = drawn, instances, seed, size

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
        """The factors of picture `index`, without drawing it."""
        return self._start(index)[1]

    def _start(self, index: int) -> tuple[Character, Style, np.random.Generator]:
        """The picture's character and style, and its generator as it stands after the style was drawn."""
        class_index, instance = divmod(range(len(self))[index], self.instances)
        character = self.characters[class_index]
        rng = np.random.default_rng((self.seed, ord(character.text), instance))
        return character, draw_style(rng, character.faces), rng


def _factors(images: GlyphImages) -> dict[str, np.ndarray]:
    """The known properties of each picture: categories as int64 [n], measures as float32 [n]."""
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
"""Factors that are numbers: degrees, glyph's longer side / picture's side, standard deviation in grey levels."""
