"""Which items a search may find: by label and by metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zoo.errors import UsageError

Value = str | int | float | bool | None


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
            if '"' in key or "\0" in key or not values or not all(isinstance(v, Value) for v in values):
                raise UsageError(
                    f"the filter on {key[:80]!r} is not understood: a key without quotation marks, and a text, a "
                    "number, true, false or null, or a list of them."
                )

    def __bool__(self) -> bool:
        return bool(self.labels or self.where)

    def sql(self) -> tuple[str, list[Any]]:
        """The condition on a row of `items`, and its values."""
        parts: list[str] = []
        given: list[Any] = []
        if self.labels:
            parts.append(f"label IN ({_marks(self.labels)})")
            given += self.labels
        for key, wanted in self.where.items():
            values = wanted if isinstance(wanted, list) else [wanted]
            known = [value for value in values if value is not None]
            # Of an item without the key json_extract gives NULL, as it does of null.
            found = f"json_extract(metadata, ?) IN ({_marks(known)})"
            parts.append(f"({found}{' OR json_extract(metadata, ?) IS NULL' if None in values else ''})")
            path = f'$."{key}"'
            given += [path, *known, *([path] if None in values else [])]
        return " AND ".join(parts) or "1", given


EVERYTHING = Filter()


def _marks(values: Any) -> str:
    return ", ".join("?" * len(values))
