"""The rule that tells copies: the embeddings and the perceptual hashes of two pictures must both be near.

Two pictures are candidates if their embeddings or their hashes are near. A candidate is confirmed

- as a whole, if the cosine is at least `least_similarity` and the hashes differ in at most `whole_distance` bits, or
- in part, if the cosine is at least `similarity` and the hashes of the part that both may show (serving.duplicates.
  alignment) differ in at most `part_distance` bits. The hash of a whole picture cannot confirm a crop.

The hash of either picture may be that of its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from PIL import Image, ImageOps

from serving.duplicates.alignment import aligned_distance
from zoo.data.perceptual_hash import hamming, mirror_hash
from zoo.errors import ImageError


@dataclass(frozen=True)
class Rule:
    """Thresholds, chosen on photographs of birds (docs/search.md).

    Attributes:
        name: Its name, kept with the pairs that it confirmed.
        similarity: Cosine from which two embeddings make a candidate.
        candidate_distance: Bits up to which two hashes make a candidate.
        least_similarity, whole_distance, part_distance: See the head of this module.
    """

    name: str = "1"
    similarity: float = 0.6
    candidate_distance: int = 31
    least_similarity: float = 0.2
    whole_distance: int = 40
    part_distance: int = 30


RULE = Rule()

Picture = Callable[[], Image.Image]
"""Reads a picture, of mode L."""


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


def confirm(
    similarity: float, hashes: tuple[np.ndarray, np.ndarray], pictures: tuple[Picture, Picture]
) -> Evidence | None:
    """Return why two candidates are copies by `RULE`, None if they are not.

    Args:
        similarity: Cosine of their embeddings.
        hashes: Their hashes, uint8 [32] each.
        pictures: Read them; they are called only if the whole hashes do not decide.
    """
    if similarity < RULE.least_similarity:
        return None
    straight, mirrored = int(hamming(*hashes)), int(hamming(hashes[0], mirror_hash(hashes[1])))
    if min(straight, mirrored) <= RULE.whole_distance:
        return Evidence(similarity, min(straight, mirrored), mirrored < straight, False)
    if similarity < RULE.similarity:
        return None
    try:
        first, second = (read() for read in pictures)
    except ImageError:  # in a gallery of somebody else
        return None
    for turned in (False, True):
        distance = aligned_distance(first, ImageOps.mirror(second) if turned else second)
        if distance <= RULE.part_distance:
            return Evidence(similarity, distance, turned, True)
    return None
