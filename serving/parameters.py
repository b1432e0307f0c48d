"""Parsers of parameters, which raise `ValueError` for what is not one; `serving.schemas` makes types of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from serving.gallery.query import MAX_PARTS
from serving.gallery.types import MAX_DEPTH, MAX_KEY, check_key, check_source, merged_metadata, metadata_json
from zoo.data.names import canonical
from zoo.errors import ItemNotFoundError, UsageError

MAX_METADATA = 16_000
"""Largest number of characters of an item's metadata as JSON."""


def parse_item_id(value: Any) -> int:
    """Return the id of an item. Raises `ItemNotFoundError` for what cannot be an id."""
    if not re.fullmatch(r"[0-9]{1,18}", str(value), re.ASCII):
        raise ItemNotFoundError("no item has this id; ids are whole numbers.")
    return int(value)


def parse_id_text(value: Any) -> str:
    """Return an id as a text: whether it can be an id is checked after its combination with other parameters."""
    if isinstance(value, bool | list | dict):
        raise ValueError("expected the id of an item")
    return str(value)


def parse_truth(value: Any) -> Any:
    """Refuse what pydantic would take for a truth value, such as "yes" and "0"; JSON has true and false itself."""
    if not isinstance(value, bool) and value not in ("true", "false"):
        raise ValueError("expected true or false")
    return value


def parse_whole_number(value: Any) -> Any:
    """Refuse what pydantic would take for a whole number: true, 2.0, "1_000", " 5"."""
    if not re.fullmatch(r"-?[0-9]{1,15}", str(value), re.ASCII):
        raise ValueError("expected a whole number")
    return value


def parse_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def parse_json_object(value: Any) -> Any:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError('expected a JSON object, as {"colour": "red"}')
    return value


def parse_query_parts(value: Any) -> Any:
    """Refuse what is not a list of parts, and too many of them before each is looked at."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PARTS:
        example = '[{"text": "red"}, {"id": 17, "weight": -1}]'
        raise ValueError(f"expected a JSON list of 1 to {MAX_PARTS} parts, as {example}")
    return value


def parse_weight(value: float) -> float:
    if not value:
        raise ValueError("expected a number other than 0")
    return value


def parse_metadata(value: dict[str, Any]) -> dict[str, Any]:
    try:
        is_short = len(json.dumps(value)) <= MAX_METADATA  # first, because it is fast
        if is_short:
            metadata_json(value).encode()
    except (ValueError, RecursionError):
        raise ValueError(
            "expected a JSON object of valid Unicode without NaN, infinity, whole numbers beyond 64 bits and more than "
            f"{MAX_DEPTH} levels"
        ) from None
    if not is_short:
        raise ValueError(f"expected at most {MAX_METADATA:,} characters of JSON")
    return value


def short_metadata(change: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item's metadata with a change merged into them. Raises `RefusedError` if they become too large."""
    try:
        return parse_metadata(merged_metadata(change, metadata))
    except ValueError as error:
        from serving.errors import RefusedError  # not at the top: the client needs no web framework

        raise RefusedError(422, "invalid_metadata", f"The merged metadata are too large: {error}.") from None


def parse_box(value: Any) -> Any:
    """Return the sides of a part of an image, which are a text, or a list of numbers in JSON."""
    expected = ValueError("expected left,top,right,bottom as fractions of the image's sides, as 0.1,0.2,0.6,0.9")
    sides = value.split(",") if isinstance(value, str) else value
    if not isinstance(sides, list) or len(sides) != 4 or any(isinstance(side, bool | list | dict) for side in sides):
        raise expected
    try:
        left, top, right, bottom = map(float, sides)
    except (OverflowError, TypeError, ValueError):
        raise expected from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise expected
    return left, top, right, bottom


def parse_printable(value: str | None) -> str | None:
    if value and not value.isprintable():
        raise ValueError("expected a text of characters that can be printed")
    return (value and canonical(value)) or None


def parse_source(value: str | None) -> str | None:
    """Refuse what cannot be a source; an empty text stands for None."""
    try:
        return check_source(value) if value else None
    except UsageError as error:
        raise ValueError(str(error)) from None


def parse_key(value: Any) -> Any:
    """Refuse what cannot be a key; an empty text stands for None."""
    if not isinstance(value, str) or not value:
        return None if value == "" else value
    try:
        return check_key(value)
    except UsageError:
        raise ValueError(
            f"expected 1 to {MAX_KEY} characters of valid Unicode, none of them a control character"
        ) from None
