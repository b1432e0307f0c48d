"""The rule that tells copies: their embeddings are near, and the part that both show agrees in detail.

Two pictures are candidates if their embeddings or their hashes are near. A candidate is confirmed if its embeddings'
cosine is at least `least_similarity`, and the whole of both pictures agrees in detail (`serving.duplicates.detail`);
or, for candidates by embedding, all of one picture and its best place in the other (`serving.duplicates.alignment`).

- In pictures on a background of one colour, as documents and logos, the strokes of all blocks must agree.
- In all others, `most` of the blocks must agree, and the hashes differ in at most `most_distance` bits. Or `least` of
  the blocks agree, half of them have a correlation of at least `rest`, and the hashes of the part, or of its upper or
  lower three quarters, differ in at most `part_distance` bits: a watermark or a caption may cover the others.

The second picture may be mirrored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from PIL import Image

from serving.duplicates.alignment import GreyPicture, refined, shared_parts
from serving.duplicates.detail import (
    FULL_SIDE,
    SIDE,
    PicturePair,
    block_correlations,
    has_background,
    stroke_correlations,
)
from zoo.data.perceptual_hash import Box, hamming, mirror_hash, perceptual_hash
from zoo.errors import ImageError


@dataclass(frozen=True)
class Rule:
    """Thresholds, chosen on photographs of birds and cars and on drawn documents (docs/lab/duplicates.md).

    Attributes:
        name: Its name, kept with the pairs that it confirmed.
        similarity: Cosine from which two embeddings make a candidate.
        candidate_distance: Bits up to which two hashes make a candidate.
        whole_distance: Bits from which two whole pictures are not compared in detail.
        strokes: Correlation of the strokes of a block from which they agree.
        most_strokes, least_strokes: Share of the blocks whose strokes must agree after an alignment, and the
            correlation that all of them must reach.
        misses: Candidates of one item, by each of the two searches, that may fail; then its search ends.
        blocks: Blocks with structure below which nothing is confirmed.
        block: Correlation from which a block agrees.
        least_similarity, most, most_distance, least, rest, part_distance: See the head of this module.
    """

    name: str = "2"
    similarity: float = 0.5
    candidate_distance: int = 31
    whole_distance: int = 80
    least_similarity: float = 0.2
    blocks: int = 6
    block: float = 0.7
    most: float = 0.9
    most_distance: int = 60
    least: float = 0.65
    rest: float = 0.98
    part_distance: int = 30
    strokes: float = 0.75
    most_strokes: float = 0.97
    least_strokes: float = 0.6
    misses: int = 4


RULE = Rule()

WINDOWS = ((0.0, 1.0), (0.0, 0.75), (0.25, 1.0))
"""Upper and lower end of the parts of the shared part whose hashes are compared, as shares of its height."""

Picture = Callable[[], GreyPicture]
"""Reads a picture."""


@dataclass(frozen=True)
class Evidence:
    """Evidence that two pictures are copies.

    Attributes:
        similarity: Cosine of their embeddings.
        distance: Different bits of their hashes, of 256.
        mirrored: Whether one is the mirror image of the other.
        part: Whether the distance is of the part that both show.
    """

    similarity: float
    distance: int
    mirrored: bool
    part: bool

    def row(self) -> tuple[float, int, bool, bool]:
        """Return the values in the order of the table of copies."""
        return self.similarity, self.distance, self.mirrored, self.part

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Return the evidence of a row that `row` made."""
        similarity, distance, mirrored, part = row
        return cls(float(similarity), int(distance), bool(mirrored), bool(part))


Check = Callable[[int, bool], Evidence | None]
"""Returns why an item, near by its embedding or only by its hash, is a copy; None if it is not."""


def confirm(
    similarity: float,
    hashes: tuple[np.ndarray, np.ndarray],
    pictures: tuple[Picture, Picture],
    is_near: bool,
) -> Evidence | None:
    """Return why two candidates are copies by `RULE`, None if they are not.

    Args:
        similarity: Cosine of their embeddings.
        hashes: Their hashes, uint8 [32] each.
        pictures: Read them.
        is_near: Whether they are candidates by their embeddings, so that one may be a part of the other.
    """
    if similarity < RULE.least_similarity:
        return None
    distances = int(hamming(*hashes)), int(hamming(hashes[0], mirror_hash(hashes[1])))
    wholes = [turned for turned in (False, True) if distances[turned] < RULE.whole_distance]
    if not wholes and not is_near:
        return None
    try:
        first, second = (read() for read in pictures)
    except ImageError:  # in a gallery of somebody else
        return None
    for turned in sorted(wholes, key=distances.__getitem__):
        other = second.mirrored if turned else second
        if _agree(PicturePair(first.image, first.whole, other.image, other.whole), is_whole=True) is not None:
            return Evidence(similarity, distances[turned], turned, False)
    for turned in (False, True) if is_near else ():
        for parts in shared_parts(first, second, turned):
            if (distance := _agree(parts, is_whole=False)) is not None:
                return Evidence(similarity, distance, turned, True)
    return None


def confirm_nearest(similar: Sequence[int], close: Sequence[int], check: Check) -> Iterator[tuple[int, Evidence]]:
    """Yield the candidates of one item that are copies; each search ends after `RULE.misses` that are not.

    So the work grows with the items and their copies, also where thousands of items are near to each other.

    Args:
        similar: Candidates by embedding, the nearest first.
        close: Candidates by hash, the nearest first.
        check: Returns the evidence for a candidate.
    """
    known: dict[int, Evidence | None] = {}
    for candidates, is_near in ((close, False), (similar, True)):
        misses = 0
        for candidate in candidates:
            evidence = known.get(candidate)
            if evidence is None:
                evidence = known[candidate] = check(candidate, is_near)
                if evidence is not None:
                    yield candidate, evidence
            misses += evidence is None
            if misses == RULE.misses:
                break


def _agree(parts: PicturePair, is_whole: bool) -> int | None:
    """Return the different bits of the hashes of parts that agree in detail, None if they do not."""
    pixels = parts.pixels(SIDE)
    found = block_correlations(*pixels)
    share = float((found >= RULE.block).mean()) if len(found) >= RULE.blocks else 0.0
    if share < RULE.least:
        return None
    distance = _distance(parts)
    if any(map(has_background, pixels)):
        return distance if _strokes_agree(parts, is_whole) else None
    is_same = share >= RULE.most and distance <= RULE.most_distance
    is_covered = np.median(found) >= RULE.rest and distance <= RULE.part_distance
    return distance if is_same or is_covered else None


def _strokes_agree(parts: PicturePair, is_whole: bool) -> bool:
    """Return whether the strokes of all blocks agree; after an alignment, which is less exact, those of nearly all."""
    found = stroke_correlations(*parts.pixels(FULL_SIDE))
    if is_whole:
        return bool((found >= RULE.strokes).all())
    if (found >= RULE.strokes).mean() < RULE.least:
        return False
    found = stroke_correlations(*refined(parts).pixels(FULL_SIDE))
    return bool((found >= RULE.least_strokes).all() and (found >= RULE.strokes).mean() >= RULE.most_strokes)


def _distance(parts: PicturePair) -> int:
    """Return the smallest distance of the hashes of two parts among the `WINDOWS`."""

    def hashes(image: Image.Image, box: Box) -> np.ndarray:
        left, top, right, bottom = box
        rows = [(top + upper * (bottom - top), top + lower * (bottom - top)) for upper, lower in WINDOWS]
        return np.stack([perceptual_hash(image, (left, upper, right, lower)) for upper, lower in rows])

    distances = hamming(hashes(parts.first, parts.first_box), hashes(parts.second, parts.second_box))
    return int(distances.min())
