"""Counts over all items of a store: of their labels, and of what their metadata say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_LABELS = """
SELECT label, count(*) AS items, count(*) OVER () FROM items WHERE label IS NOT NULL
GROUP BY label ORDER BY items DESC, label LIMIT ?
"""
_METADATA = """
SELECT key, atom, type, count(*) AS items, count(*) OVER () FROM (
  SELECT one.key, one.atom, one.type FROM items, json_each(items.metadata) AS one WHERE one.atom IS NOT NULL
  UNION ALL
  SELECT key, atom, type FROM (
    SELECT DISTINCT items.id, list.key, one.atom, one.type
    FROM items, json_each(items.metadata) AS list, json_each(list.value) AS one
    WHERE list.type = 'array' AND one.atom IS NOT NULL
  )
)
GROUP BY key, type, atom ORDER BY items DESC, key, atom LIMIT ?
"""
"""Objects and nulls have no atom; of a list each member counts, once an item, as a filter finds it."""
_KEYS = """
SELECT DISTINCT one.key FROM (SELECT metadata FROM items ORDER BY id LIMIT ?) AS first, json_each(first.metadata) AS one
ORDER BY one.key
"""


class Overview:
    """Of a store; `read` runs a query on it, as `Database.query`."""

    def __init__(self, read: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._read = read

    def labels(self, limit: int) -> tuple[int, list[tuple[str, int]]]:
        """How many labels there are, and how many items have each; the most frequent first, up to `limit` of them."""
        rows = self._read(_LABELS, limit)
        return (rows[0][2] if rows else 0), [(label, items) for label, items, _ in rows]

    def metadata(self, limit: int) -> tuple[int, list[tuple[str, str | int | float | bool, int]]]:
        """How many values there are, and key, value and items of each; the most frequent first, up to `limit`."""
        rows = self._read(_METADATA, limit)
        found = [(key, kind == "true" if kind in ("true", "false") else atom, n) for key, atom, kind, n, _ in rows]
        # Older stores may hold whole numbers that SQLite reads as infinity, which JSON has not.
        return (rows[0][4] if rows else 0), [one for one in found if one[1] not in (math.inf, -math.inf)]

    def keys(self, limit: int) -> list[str]:
        """What the metadata of the first `limit` items have, whatever its value, in order."""
        return [key for (key,) in self._read(_KEYS, limit)]
