"""Filters of items by label and metadata."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.gallery.types import LISTED, is_int64
from zoo.data.names import canonical
from zoo.errors import UsageError

Value = str | int | float | bool | None
Range = Mapping[str, str | int | float]
"""At most one lower and one upper bound, by their names in `BOUNDS`."""

BOUNDS = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}
_COMPARE = {"gte": operator.ge, "gt": operator.gt, "lte": operator.le, "lt": operator.lt}
MAX_KEYS, MAX_VALUES, MAX_LABELS = 50, 1000, 10_000
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_JSON_TYPES = {True: "true", False: "false", None: "null"}
_METADATA_TEST = """
CASE json_type(metadata, ?) WHEN 'array' THEN EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE {test})
ELSE (SELECT {test} FROM (SELECT coalesce(json_type(metadata, ?), 'null') AS type, json_extract(metadata, ?) AS value))
END
"""
"""A test of `type` and `value` for the metadata at a path, or for each member of the list at that path."""


@dataclass(frozen=True)
class Filter:
    """A condition on the label and the metadata of items.

    An item matches if it has one of the labels (any label if none is given) and matches each key of `where`: its value
    equals the wanted one, or one of a list, or is within a range such as {"gte": 1900, "lt": 1950} of numbers or texts.
    A list in the metadata matches if one member does. A missing key counts as null.

    Raises:
        UsageError: With the code "invalid-value" or "too-large".
    """

    labels: tuple[str, ...] = ()
    where: Mapping[str, Value | list[Value] | Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.where) > MAX_KEYS:
            message = f"a filter has {len(self.where):,} keys; at most {MAX_KEYS} are accepted."
            raise UsageError(message, code="too-large")
        if len(self.labels) > MAX_LABELS:
            message = f"a filter has {len(self.labels):,} labels; at most {MAX_LABELS:,} are accepted."
            raise UsageError(message, code="too-large")
        for key, wanted in self.where.items():
            if not _is_key(key) or not _is_wanted(wanted):
                raise UsageError(
                    f"the filter on {str(key)[:80]!r} is not valid. Expected a key without quotation marks, and a "
                    f"text, number, true, false or null, a list of at most {MAX_VALUES:,} of them, or a range of "
                    'numbers or texts such as {"gte": 1900, "lt": 1950} (gt, gte, lt, lte).',
                    code="invalid-value",
                )
        if any(not _is_text(label) for label in self.labels):
            raise UsageError("a label of the filter has a character that no label has.", code="invalid-value")
        object.__setattr__(self, "labels", tuple(map(canonical, self.labels)))
        object.__setattr__(self, "where", {canonical(key): _canonical(wanted) for key, wanted in self.where.items()})

    def __bool__(self) -> bool:
        return bool(self.labels or self.where)

    def sql(self) -> tuple[str, list[Any]]:
        """Return the condition on a row of `items`, and its values."""
        conditions: list[str] = []
        values: list[Any] = []
        if self.labels:
            conditions.append(f"label IN {LISTED}")
            values.append(_json(self.labels))
        for key, wanted in self.where.items():
            test, test_values = _range_test(wanted) if isinstance(wanted, Mapping) else _values_test(wanted)
            path = f"$.{_json(key)}"  # with backslashes escaped, as in the metadata
            conditions.append(_METADATA_TEST.format(test=test))
            values += [path, path, *test_values, *test_values, path, path]
        return " AND ".join(conditions) or "1", values

    def matches(self, label: str | None, metadata: Mapping[str, Any]) -> bool:
        """Return whether an item with this label and these metadata is let through, as `sql` decides it."""
        if self.labels and label not in self.labels:
            return False
        return all(_holds(metadata.get(key), wanted) for key, wanted in self.where.items())


EVERYTHING = Filter()


def _canonical(wanted: Any) -> Any:
    """Return a condition whose texts are in the Unicode form of the gallery's."""
    if isinstance(wanted, Mapping):
        return {name: _canonical(bound) for name, bound in wanted.items()}
    if isinstance(wanted, list):
        return [_canonical(value) for value in wanted]
    return canonical(wanted) if isinstance(wanted, str) else wanted


def where_clause(selection: Filter) -> tuple[str, list[Any]]:
    """Return the WHERE clause for items that match, and its values."""
    if not selection:
        return "", []  # SQLite counts much faster without a condition
    condition, values = selection.sql()
    return f"WHERE {condition}", values


def _holds(value: object, wanted: Value | list[Value] | Range) -> bool:
    """Return whether a value of the metadata, or one member of a list, is wanted."""
    if isinstance(value, list):
        return any(_has_wanted(member, wanted) for member in value)
    return _has_wanted(value, wanted)


def _has_wanted(value: Any, wanted: Value | list[Value] | Range) -> bool:
    if isinstance(wanted, Mapping):
        bounds = [(_COMPARE[name], bound) for name, bound in wanted.items()]
        return all(_kind(value) is _kind(bound) is not None and test(value, bound) for test, bound in bounds)
    values = wanted if isinstance(wanted, list) else [wanted]
    return any(_kind(value) is _kind(other) and value == other for other in values if _kind(value) is not None)


def _kind(value: object) -> type | None:
    """Return the kind of a value within which values can be equal; None for objects and lists."""
    if isinstance(value, bool | str) or value is None:
        return type(value)
    return float if isinstance(value, int | float) else None


def _values_test(wanted: Value | list[Value]) -> tuple[str, list[Any]]:
    values, alternatives, test_values = wanted if isinstance(wanted, list) else [wanted], [], []
    if atoms := [value for value in values if not isinstance(value, bool | None)]:
        # Without the type, true would equal 1, and an object its text.
        alternatives.append(f"type IN ('integer', 'real', 'text') AND value IN {LISTED}")
        test_values.append(_json(atoms))
    if types := [_JSON_TYPES[value] for value in values if isinstance(value, bool | None)]:
        alternatives.append(f"type IN {LISTED}")
        test_values.append(_json(types))
    return f"({' OR '.join(alternatives)})", test_values


def _range_test(bounds: Range) -> tuple[str, list[Any]]:
    types = "('text')" if isinstance(next(iter(bounds.values())), str) else "('integer', 'real')"
    return " AND ".join([f"type IN {types}", *(f"value {BOUNDS[name]} ?" for name in bounds)]), [*bounds.values()]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_key(key: str) -> bool:
    return isinstance(key, str) and '"' not in key and _is_text(key)


def _is_wanted(wanted: object) -> bool:
    if isinstance(wanted, Mapping):
        return _is_range(wanted)
    values = wanted if isinstance(wanted, list) else [wanted]
    return 0 < len(values) <= MAX_VALUES and all(map(_is_value, values))


def _is_range(bounds: Mapping[Any, Any]) -> bool:
    """Return whether there is at most one bound per side, and all are numbers or all are texts."""
    sides = {name[0] for name in bounds if name in BOUNDS}
    types = {str if isinstance(bound, str) else float for bound in bounds.values()}
    atoms = all(_is_value(bound) and not isinstance(bound, bool | None) for bound in bounds.values())
    return bounds.keys() <= BOUNDS.keys() and len(sides) == len(bounds) and len(types) == 1 and atoms


def _is_value(value: object) -> bool:
    if isinstance(value, int):
        return is_int64(value)
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_text(value) if isinstance(value, str) else isinstance(value, Value)


def _is_text(text: str) -> bool:
    """Return whether SQLite can hold a text: it ends texts at a 0, and takes no half of a surrogate pair."""
    return not _UNSTORABLE.search(text)
