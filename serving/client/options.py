"""How a search may be narrowed, the same for both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from serving.client.parameters import Box


class SearchOptions(TypedDict, total=False):
    """k: how many (10), from the `offset`-th on (0). min_similarity, min_p: leave out less similar ones, by the cosine
    or by p_same. labels: items of one of these alone; where: items whose metadata has these values, one of them where
    it is a list, or one within a range, as {"year": {"gte": 1900, "lt": 1950}}. crop: left, top, right, bottom of the
    image, as fractions of its sides. rerank: "none", "expansion" or "reciprocal".
    """

    k: int
    offset: int
    min_similarity: float | None
    min_p: float | None
    labels: str | Sequence[str]
    where: Mapping[str, Any] | None
    crop: Box | None
    rerank: str
