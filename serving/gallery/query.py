"""Queries of a search: an image, an item of the gallery or a text, or a weighted sum of several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.gallery.types import Box
from zoo.data.images import ImageLike
from zoo.errors import UsageError

MAX_PARTS = 16
"""Largest number of parts of a query: each is decoded and embedded."""
MAX_WEIGHT = 100.0
"""Largest absolute weight of a part."""
LEAST_LENGTH = 1e-3
"""Length of a weighted sum, as a share of the sum of its absolute weights, below which it has no direction."""


@dataclass(frozen=True)
class QueryPart:
    """Part of a query: an image, an item of the gallery or a text, exactly one of the three, with a weight.

    Attributes:
        image: The image: a path, file bytes, a PIL image or a uint8 array.
        item: The id or the key of the item.
        text: The text, if the gallery's model has a text tower.
        weight: The factor of its unit embedding in the sum; a negative one searches for less of it.
        crop: The part of the image to search by: left, top, right, bottom as fractions of its sides.
    """

    image: ImageLike | None = None
    item: int | str | None = None
    text: str | None = None
    weight: float = 1.0
    crop: Box | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.image, self.item, self.text)) != 1:
            raise UsageError(
                "search needs an image, an item or a text; a part of a query is one of the three.", code="missing-value"
            )
        if self.crop is not None and self.image is None:
            raise UsageError("only an image can be cropped.", code="option-without-effect")
        if not (math.isfinite(self.weight) and 0 < abs(self.weight) <= MAX_WEIGHT):
            raise UsageError(
                f"the weight of a part is {self.weight}; expected a number from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g} "
                "other than 0.",
                code="invalid-value",
            )


@dataclass(frozen=True)
class SearchQuery:
    """Weighted sum of the unit embeddings of one or several parts, of unit length again."""

    parts: tuple[QueryPart, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise UsageError(
                f"the query has {len(self.parts):,} parts; expected 1 to {MAX_PARTS}.", code="invalid-value"
            )

    @classmethod
    def of(
        cls,
        image: ImageLike | None = None,
        item: int | str | None = None,
        text: str | None = None,
        parts: Sequence[QueryPart] | None = None,
        crop: Box | None = None,
    ) -> SearchQuery:
        """Return the query of an image, an item, a text or several parts, exactly one of the four.

        Raises:
            UsageError: If none or several are given, or a part or their number is out of bounds.
        """
        if parts is None:
            return cls((QueryPart(image, item, text, crop=crop),))
        if any(value is not None for value in (image, item, text, crop)):
            raise UsageError(
                "a query of several parts has its images, items, texts and crops in the parts.",
                code="conflicting-options",
            )
        return cls(tuple(parts))

    @property
    def picture(self) -> QueryPart | None:
        """The image or the item of a query that is nothing else: what is known of pairs of images holds for it."""
        only = self.only
        return None if only is None or only.text is not None else only

    @property
    def only(self) -> QueryPart | None:
        """The part of a query that has one with a positive weight, whose size does not matter."""
        return self.parts[0] if len(self.parts) == 1 and self.parts[0].weight > 0 else None

    def combined(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the unit vector, float32 [1, dim], of the unit embeddings of the parts, float32 [1, dim] each.

        Raises:
            UsageError: The parts cancel one another out (`no-direction`).
        """
        if self.only is not None:
            return vectors[0]
        weights = np.array([part.weight for part in self.parts])
        # Only their ratios matter; the squares of tiny ones would be 0. A power of 2 changes no other digit.
        weights = np.ldexp(weights, -int(np.frexp(np.abs(weights).max())[1]))
        total = weights @ np.concatenate(vectors).astype(np.float64)
        length = float(np.linalg.norm(total))
        if length < LEAST_LENGTH * np.abs(weights).sum():
            raise UsageError(
                "the parts of the query cancel one another out; change a weight, or leave out what is both added and "
                "subtracted.",
                code="no-direction",
            )
        unit: np.ndarray = (total / length)[None].astype(np.float32)
        return unit
