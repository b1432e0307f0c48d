"""Which items a search may find: by label and by metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.gallery.rows import is_whole
from zoo.errors import UsageError

Value = str | int | float | bool | None
MAX_KEYS, MAX_VALUES, MAX_LABELS = 50, 1000, 10_000


@dataclass(frozen=True)
class Filter:
    """Items that have one of `labels` (any, where there are none) and whose metadata has every key of `where` with that
    value, or with one of its values where it is a list.
    """

    labels: tuple[str, ...] = ()
    where: Mapping[str, Value | list[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, wanted in self.where.items():
            values = wanted if isinstance(wanted, list) else [wanted]
            if not _can_be_key(key) or not 0 < len(values) <= MAX_VALUES or not all(map(_can_be_value, values)):
                raise UsageError(
                    f"the filter on {key[:80]!r} is not understood: a key without quotation marks, and a text, a "
                    f"number, true, false or null, or a list of at most {MAX_VALUES:,} of them."
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
            values = wanted if isinstance(wanted, list) else [wanted]
            path = f"$.{_as_json(key)}"  # as the metadata have it, backslashes escaped
            alternatives = []
            if atoms := [value for value in values if not isinstance(value, bool | None)]:
                # To SQLite true is 1, and a list is its text.
                kind = "json_type(metadata, ?) IN ('integer', 'real', 'text')"
                alternatives.append(f"json_extract(metadata, ?) IN {_LISTED} AND {kind}")
                given += [path, _as_json(atoms), path]
            if kinds := [_KINDS[value] for value in values if isinstance(value, bool | None)]:
                # An item without the key has no type, and counts as if it had null.
                alternatives.append(f"coalesce(json_type(metadata, ?), 'null') IN {_LISTED}")
                given += [path, _as_json(kinds)]
            parts.append(f"({' OR '.join(alternatives)})")
        return " AND ".join(parts) or "1", given


EVERYTHING = Filter()

_LISTED = "(SELECT value FROM json_each(?))"
"""A statement takes so many values only, of which a list is one."""
_KINDS = {True: "true", False: "false", None: "null"}
"""As json_type calls them."""


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _can_be_key(key: str) -> bool:
    return '"' not in key and "\0" not in key and _is_unicode(key)


def _can_be_value(value: object) -> bool:
    """SQLite's whole numbers have 64 bits; its texts end at a 0 and hold no half of a surrogate pair, as JSON may."""
    if isinstance(value, int):
        return is_whole(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return "\0" not in value and _is_unicode(value) if isinstance(value, str) else isinstance(value, Value)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def where(label: str | None, chosen: Filter) -> tuple[str, list[Any]]:
    """The clause for items of this label, of any where it is None, that `chosen` lets through, and its values."""
    if label is None and not chosen:
        return "", []  # all are counted much quicker without a condition
    condition, values = chosen.sql()
    return (f"WHERE {condition}", values) if label is None else (f"WHERE label = ? AND {condition}", [label, *values])
