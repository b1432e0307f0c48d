"""Choice of the characters of the data set `glyphs`: `python tools/glyphs_alphabet.py` writes glyphs.json.

Candidates are the letters and digits of each script that at least four faces have, without diacritics. Every face's
glyph is brought to one position and size by its moments (centroid in the middle, root-mean-square radius fixed), so
that a small c equals a capital C, and described by the gradients of its picture, which follow its outline. Two
characters look alike where the cosine between those descriptions reaches THRESHOLD for any two of their faces with
one of them turned by up to twice the angle that pictures are turned by. Of characters that look alike, in one split
or across both, only the first is kept: so nothing of test is seen in training under another name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter, features

from zoo.data.glyphs import ALPHABET, FACES, MAX_ANGLE, font_file, glyph_image
from zoo.files import sha256_of, write_json

THRESHOLD = 0.805
"""Cosine from which two glyphs count as alike. Set by eye: just above it lie T and archaic Greek sampi, V and nu,
B and R, p and P, beta and B; well below it E and F (0.77), K and k (0.69), h and n (0.64), P and R (0.57)."""

MIN_FACES = 4
TURNS = (0.0, MAX_ANGLE * 2 / 3, MAX_ANGLE * 4 / 3, MAX_ANGLE * 2)
"""Degrees between two glyphs at which they are compared, to either side."""

SCRIPTS = {
    "Digits": ("train", "DIGIT"),
    "Latin": ("train", "LATIN"),
    "Cyrillic": ("train", "CYRILLIC"),
    "Greek": ("test", "GREEK"),
    "Armenian": ("test", "ARMENIAN"),
    "Georgian": ("test", "GEORGIAN"),
    "Lao": ("test", "LAO"),
    "Hebrew": ("test", "HEBREW"),
    "Arabic": ("train", "ARABIC"),
    "Canadian": ("train", "CANADIAN"),
}
"""Script -> its split and the beginning of the Unicode names of its characters, in the order in which they are kept.

The familiar training scripts come before those of test and the others after them: a character that looks like an
earlier one is left out.
"""

_GRID = 32  # pixels of a normalised glyph's side
_REACH = 2.2  # half of that side in root-mean-square radii


@dataclass(frozen=True)
class Candidate:
    """A character, its script and the faces that have it."""

    text: str
    script: str
    faces: tuple[int, ...]


def candidates() -> list[Candidate]:
    """Return all letters and digits that could be classes, script by script, by code point."""
    coverage = _coverage()
    return [
        Candidate(chr(code), script, faces)
        for script, (_, prefix) in SCRIPTS.items()
        for code, faces in sorted(coverage.items())
        if len(faces) >= MIN_FACES and _is_plain(chr(code), prefix)
    ]


def _coverage() -> dict[int, tuple[int, ...]]:
    """Return the faces that have each code point."""
    from fontTools.ttLib import TTFont

    faces: dict[int, list[int]] = {}
    for i, face in enumerate(FACES):
        with TTFont(font_file(face), lazy=True) as font:
            for code in font.getBestCmap():
                faces.setdefault(code, []).append(i)
    return {code: tuple(indices) for code, indices in faces.items()}


def _is_plain(text: str, prefix: str) -> bool:
    """Return whether a character is a letter or digit of the script, without a mark and not a form of another one."""
    name = unicodedata.name(text, "")
    return (
        name.startswith(prefix + " ")
        and " WITH " not in name
        and not unicodedata.decomposition(text)
        and unicodedata.category(text) in ("Lu", "Ll", "Lo", "Nd")
    )


def normalised(glyph: Image.Image) -> Image.Image:
    """Return the glyph with a central centroid and a fixed root-mean-square radius: `_GRID` x `_GRID`, mode L."""
    weight = np.asarray(glyph, dtype=np.float64)
    columns, rows = weight.sum(0) / weight.sum(), weight.sum(1) / weight.sum()
    x, y = np.arange(glyph.width) + 0.5, np.arange(glyph.height) + 0.5
    cx, cy = columns @ x, rows @ y
    reach = _REACH * np.sqrt(columns @ (x - cx) ** 2 + rows @ (y - cy) ** 2)
    margin = int(max(reach - cx, reach - cy, cx + reach - glyph.width, cy + reach - glyph.height, 0)) + 2
    framed = Image.new("L", (glyph.width + 2 * margin, glyph.height + 2 * margin))
    framed.paste(glyph, (margin, margin))
    left, top = cx + margin - reach, cy + margin - reach
    box = (left, top, left + 2 * reach, top + 2 * reach)
    return framed.resize((_GRID, _GRID), Image.Resampling.BILINEAR, box=box)


def descriptions(glyphs: Sequence[Image.Image]) -> np.ndarray:
    """Return unit vectors of the gradients of normalised glyphs, float32 [n, _GRID * _GRID / 2]."""
    smooth = np.stack([np.asarray(glyph.filter(ImageFilter.GaussianBlur(0.7)), dtype=np.float32) for glyph in glyphs])
    both = [np.gradient(smooth, axis=axis)[:, ::2, ::2].reshape(len(glyphs), -1) for axis in (1, 2)]
    gradients = np.concatenate(both, axis=1)
    return gradients / np.linalg.norm(gradients, axis=1, keepdims=True)


def similarities(characters: Sequence[Candidate]) -> np.ndarray:
    """Return the largest likeness of each two candidates over faces and rotations: float32 [n, n]."""
    shapes, rows = _shapes(characters)
    turned = [descriptions([shape.rotate(t, Image.Resampling.BILINEAR) for shape in shapes]) for t in TURNS]
    order = np.concatenate(rows)
    starts = np.cumsum([0] + [len(row) for row in rows])
    best = np.empty((len(characters), len(characters)), dtype=np.float32)
    # A few candidates at a time against all: ten thousand glyphs by ten thousand would take gigabytes.
    for first in range(0, len(characters), 32):
        ends = starts[first : first + 33]
        own = order[ends[0] : ends[-1]]
        cosine = np.maximum.reduce([vectors[own] @ turned[0].T for vectors in turned])
        cosine = np.maximum.reduceat(cosine, ends[:-1] - ends[0], axis=0)
        best[first : first + 32] = np.maximum.reduceat(cosine[:, order], starts[:-1], axis=1)
    # a turned to the left against b is b turned to the right against a.
    return np.maximum(best, best.T)


def _shapes(characters: Sequence[Candidate]) -> tuple[list[Image.Image], list[list[int]]]:
    """Return the different normalised glyphs and, for each candidate, the indices of its own.

    Characters of several scripts often share one outline, so a tenth of the glyphs need not be compared.
    """
    shapes: list[Image.Image] = []
    known: dict[bytes, int] = {}
    rows = []
    for candidate in characters:
        row = set()
        for face in candidate.faces:
            shape = normalised(glyph_image(candidate.text, FACES[face]))
            key = shape.tobytes()
            if key not in known:
                known[key] = len(shapes)
                shapes.append(shape)
            row.add(known[key])
        rows.append(sorted(row))
    return shapes, rows


def choose(similarity: np.ndarray, threshold: float = THRESHOLD) -> list[int]:
    """Return the indices of the candidates to keep: in order, each that does not look like one kept before it."""
    kept: list[int] = []
    for i in range(len(similarity)):
        if similarity[i, kept].max(initial=-1) < threshold:
            kept.append(i)
    return kept


def describe_alphabet(kept: Sequence[Candidate]) -> dict[str, object]:
    """Return the content of glyphs.json."""
    groups: dict[tuple[str, tuple[int, ...]], str] = {}
    for candidate in kept:
        key = (candidate.script, candidate.faces)
        groups[key] = groups.get(key, "") + candidate.text
    return {
        "threshold": THRESHOLD,
        "turns": list(TURNS),
        "freetype": features.version("freetype2"),
        "fonts": {face: sha256_of(font_file(face)) for face in FACES},
        "groups": [
            {"split": SCRIPTS[script][0], "script": script, "faces": list(faces), "characters": text}
            for (script, faces), text in groups.items()
        ],
    }


def counts(kept: Sequence[Candidate]) -> Mapping[str, int]:
    """Return the number of characters kept per split."""
    splits = [SCRIPTS[candidate.script][0] for candidate in kept]
    return {split: splits.count(split) for split in ("train", "test")}


def main() -> None:
    characters = candidates()
    kept = [characters[i] for i in choose(similarities(characters))]
    write_json(ALPHABET, describe_alphabet(kept))
    print(f"{ALPHABET}: {counts(kept)} of {len(characters)} candidates")


if __name__ == "__main__":
    main()
