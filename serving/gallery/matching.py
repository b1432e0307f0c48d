"""The items that a filter lets through, remembered until the store changes: people look at more than one page."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.gallery.filters import Filter

MOST_BYTES = 64 * 2**20
"""Of all that is remembered; the filter that was longest not asked for is forgotten first."""
MOST_FILTERS = 64


class Matching:
    """Of a store; `read` runs a query on it, as `Database.query`, and `position` says where it is. Of many threads."""

    def __init__(self, read: Callable[..., list[tuple[Any, ...]]], position: Callable[[], tuple[int, str]]) -> None:
        self._read, self._position, self._lock = read, position, threading.Lock()
        self._at: tuple[int, str] | None = None
        self._held: OrderedDict[str, np.ndarray] = OrderedDict()

    def ids(self, chosen: Filter) -> np.ndarray:
        """The ids, int64, ascending, of the items that a filter lets through. They are shared: not to be written to."""
        condition, values = chosen.sql()
        key, at = json.dumps([condition, values]), self._position()
        with self._lock:
            if at == self._at and key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        rows = self._read(f"SELECT id FROM items WHERE {condition} ORDER BY id", *values)
        found = np.array([row[0] for row in rows], np.int64)
        found.flags.writeable = False
        self._remember(key, at, found)
        return found

    def _remember(self, key: str, at: tuple[int, str], found: np.ndarray) -> None:
        """at: where the store was before it was read, so that what is remembered is of then or newer."""
        with self._lock:
            if at != self._at:
                self._held.clear()
                self._at = at
            self._held[key] = found
            while len(self._held) > MOST_FILTERS or self._bytes() > MOST_BYTES:
                self._held.popitem(last=False)

    def _bytes(self) -> int:
        return sum(len(key) + ids.nbytes for key, ids in self._held.items())
