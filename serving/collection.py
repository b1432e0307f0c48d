"""A gallery as it is served: its name, its model, its keys, its map."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from serving.gallery import Gallery
from serving.keys import Keys
from serving.metrics import SCOPE
from serving.projection import Atlas
from serving.searcher import Searcher

FOLDER = "/collections"


class Collection:
    """`name`: "" where it is the service's only gallery and at its root. Safe to use from several threads."""

    def __init__(self, name: str, open_searcher: Callable[[], Searcher], keys: Keys | None = None) -> None:
        self.name, self.keys, self.atlas = name, keys or Keys(), Atlas()
        self._open, self._lock = open_searcher, threading.Lock()
        self._searcher: Searcher | None = None

    @property
    def path(self) -> str:
        """What its routes' paths begin with."""
        return f"{FOLDER}/{self.name}" if self.name else ""

    @property
    def searcher(self) -> Searcher:
        """Opened at first use."""
        with self._lock:
            if self._searcher is None:
                self._searcher = self._open()
            return self._searcher

    @property
    def gallery(self) -> Gallery:
        return self.searcher.gallery

    def close(self) -> None:
        with self._lock:
            if self._searcher is not None:
                self._searcher.close()
                self._searcher = None

    def told(self) -> dict[str, Any]:
        """A row of GET /collections; `path`: of its page."""
        card = self.searcher.embedder.card
        return {
            "name": self.name or None,
            "path": f"{self.path}/",
            "items": self.gallery.count(),
            "model": card.name,
            "dim": card.dim,
        }


def collection_of(request: Request) -> Collection:
    found: Collection = request.scope[SCOPE]
    return found
