"""Which items a search may find: by label and by metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.gallery.types import is_int64
from zoo.errors import UsageError

Value = str | int | float | bool | None
Range = Mapping[str, str | int | float]
"""Bounds by their names in `BOUNDS`: two of them at most, one a side."""

BOUNDS = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}
MAX_KEYS, MAX_VALUES, MAX_LABELS = 50, 1000, 10_000
_LISTED = "(SELECT value FROM json_each(?))"
"""A statement takes so many values only, of which a list is one."""

_KINDS = {True: "true", False: "false", None: "null"}
"""As json_type calls them."""

_OF_METADATA = """
CASE json_type(metadata, ?) WHEN 'array' THEN EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE {test})
ELSE (SELECT {test} FROM (SELECT coalesce(json_type(metadata, ?), 'null') AS type, json_extract(metadata, ?) AS value))
END
"""
"""A test of `type` and `value` on what the metadata have at a path, or on each member of the list that lies there."""


@dataclass(frozen=True)
class Filter:
    """Items that have one of `labels` (any, where there are none) and whose metadata has every key of `where` with that
    value, with one of its values where it is a list, or within its bounds where it is a range, as {"gte": 1900, "lt":
    1950}, of numbers or of texts. Where the metadata have a list, one of its members is enough; a key that they do not
    have counts as null.
    """

    labels: tuple[str, ...] = ()
    where: Mapping[str, Value | list[Value] | Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, wanted in self.where.items():
            if not _can_be_key(key) or not _can_be_wanted(wanted):
                raise UsageError(
                    f"the filter on {str(key)[:80]!r} is not understood: a key without quotation marks, and a text, a "
                    f"number, true, false or null, a list of at most {MAX_VALUES:,} of them, or a range of numbers or "
                    'of texts, as {"gte": 1900, "lt": 1950} (gt, gte, lt, lte).'
                )
        if len(self.where) > MAX_KEYS:
            raise UsageError(f"a filter may name {MAX_KEYS} keys, not {len(self.where):,}.")
        if any("\0" in label or not _is_unicode(label) for label in self.labels):
            raise UsageError("a label that is filtered by has a character that no label has.")
        if len(self.labels) > MAX_LABELS:
            raise UsageError(f"a filter may name {MAX_LABELS:,} labels, not {len(self.labels):,}.")

    def __bool__(self) -> bool:
        return bool(self.labels or self.where)

    def sql(self) -> tuple[str, list[Any]]:
        """The condition on a row of `items`, and its values."""
        parts: list[str] = []
        given: list[Any] = []
        if self.labels:
            parts.append(f"label IN {_LISTED}")
            given.append(_as_json(self.labels))
        for key, wanted in self.where.items():
            test, values = _within(wanted) if isinstance(wanted, Mapping) else _one_of(wanted)
            path = f"$.{_as_json(key)}"  # as the metadata have it, backslashes escaped
            parts.append(_OF_METADATA.format(test=test))
            given += [path, path, *values, *values, path, path]
        return " AND ".join(parts) or "1", given


EVERYTHING = Filter()


def where_clause(label: str | None, selection: Filter) -> tuple[str, list[Any]]:
    """The clause for items of this label, of any where it is None, that `selection` lets through, and its values."""
    if label is None and not selection:
        return "", []  # all are counted much quicker without a condition
    condition, values = selection.sql()
    return (f"WHERE {condition}", values) if label is None else (f"WHERE label = ? AND {condition}", [label, *values])


def _one_of(wanted: Value | list[Value]) -> tuple[str, list[Any]]:
    """The test for these values, and what it is given."""
    values, alternatives, given = wanted if isinstance(wanted, list) else [wanted], [], []
    if atoms := [value for value in values if not isinstance(value, bool | None)]:
        # To SQLite true is 1, and an object is its text.
        alternatives.append(f"type IN ('integer', 'real', 'text') AND value IN {_LISTED}")
        given.append(_as_json(atoms))
    if kinds := [_KINDS[value] for value in values if isinstance(value, bool | None)]:
        alternatives.append(f"type IN {_LISTED}")
        given.append(_as_json(kinds))
    return f"({' OR '.join(alternatives)})", given


def _within(bounds: Range) -> tuple[str, list[Any]]:
    """The test for numbers, or texts by their characters, within these bounds, and what it is given."""
    kinds = "('text')" if isinstance(next(iter(bounds.values())), str) else "('integer', 'real')"
    return " AND ".join([f"type IN {kinds}", *(f"value {BOUNDS[name]} ?" for name in bounds)]), [*bounds.values()]


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _can_be_key(key: str) -> bool:
    return isinstance(key, str) and '"' not in key and "\0" not in key and _is_unicode(key)


def _can_be_wanted(wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return _can_be_range(wanted)
    values = wanted if isinstance(wanted, list) else [wanted]
    return 0 < len(values) <= MAX_VALUES and all(map(_can_be_value, values))


def _can_be_range(bounds: Mapping[Any, Any]) -> bool:
    """At most one bound a side; all of them numbers, or all of them texts."""
    kinds = {str if isinstance(one, str) else float for one in bounds.values()}
    values = all(_can_be_value(one) and not isinstance(one, bool | None) for one in bounds.values())
    return (
        bounds.keys() <= BOUNDS.keys()
        and len({name[0] for name in bounds}) == len(bounds)
        and len(kinds) == 1
        and values
    )


def _can_be_value(value: object) -> bool:
    """SQLite's whole numbers have 64 bits; its texts end at a 0 and hold no half of a surrogate pair, as JSON may."""
    if isinstance(value, int):
        return is_int64(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return "\0" not in value and _is_unicode(value) if isinstance(value, str) else isinstance(value, Value)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
