"""How what narrows a search is written in its address."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from zoo.errors import UsageError, nearest

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of the image, as fractions of its sides."""


def values_of(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = signature(_search_values).parameters
    if unknown := options.keys() - known:
        name = min(unknown)
        raise TypeError(f"a search has no argument {name!r}.{nearest(name, known)} It has {', '.join(known)}.")
    return _search_values(**options)


def _search_values(
    k: int = 10,
    offset: int = 0,
    min_similarity: float | None = None,
    min_p: float | None = None,
    labels: str | Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    crop: Box | None = None,
    rerank: str = "none",
) -> list[tuple[str, str]]:
    values = [("k", str(k)), ("offset", str(offset)), ("rerank", rerank)]
    values += [
        (name, f"{x:.9g}") for name, x in (("min_similarity", min_similarity), ("min_p", min_p)) if x is not None
    ]
    return values + chosen(labels, where) + crop_values(crop)


def chosen(labels: str | Sequence[str], where: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    values = [("label", label) for label in ([labels] if isinstance(labels, str) else labels)]
    return values + ([] if where is None else [("where", as_json(where, "where"))])


def as_json(values: Mapping[str, Any], name: str) -> str:
    try:
        return json.dumps(dict(values), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is a mapping of names to what JSON has: {error}.") from None


def crop_values(crop: Box | None) -> list[tuple[str, str]]:
    return [] if crop is None else [("crop", ",".join(f"{side:.9f}" for side in crop))]
