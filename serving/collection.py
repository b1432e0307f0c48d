"""A gallery as it is served: its name, its model, its keys, its map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from serving.gallery import Gallery
from serving.gallery.map import Atlas
from serving.gallery.search import Searcher
from serving.keys import Keys
from serving.metrics import SCOPE
from serving.renewing import Renewing

FOLDER = "/collections"

T = TypeVar("T")


class Collection:
    """`name`: "" where it is the service's only gallery and at its root. Safe to use from several threads."""

    def __init__(self, name: str, searchers: Renewing | Callable[[], Searcher], keys: Keys | None = None) -> None:
        """searchers: or how the one is opened."""
        self.name, self.keys, self.atlas = name, keys or Keys(), Atlas()
        self._searchers = searchers if isinstance(searchers, Renewing) else Renewing(searchers)

    @property
    def path(self) -> str:
        """What its routes' paths begin with."""
        return f"{FOLDER}/{self.name}" if self.name else ""

    @property
    def searcher(self) -> Searcher:
        """Opened at first use. It may be of a model that the gallery had before, and then refuses: see `steadily`."""
        return self._searchers.current

    def steadily(self, work: Callable[[Searcher], T]) -> T:
        """What `work` makes of the searcher; begun anew where the gallery was given another model. It may wait."""
        return self._searchers.steadily(work)

    def present(self) -> Searcher:
        """The searcher of the model that the gallery has now. It may wait."""
        return self._searchers.present()

    @property
    def gallery(self) -> Gallery:
        return self.searcher.gallery

    def watch(self) -> None:
        """Look out for another model of the gallery from now on, and load it before it is needed."""
        self._searchers.watch()

    def close(self) -> None:
        self._searchers.close()

    def told(self) -> dict[str, Any]:
        """A row of GET /collections; `path`: of its page."""
        card = self.present().embedder.card
        return {
            "name": self.name or None,
            "path": f"{self.path}/",
            "items": self.gallery.store.count(),
            "model": card.name,
            "dim": card.dim,
        }


def collection_of(request: Request) -> Collection:
    found: Collection = request.scope[SCOPE]
    return found
