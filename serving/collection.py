"""A gallery as it is served: its name, its model, its keys, its map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from serving.gallery import Gallery
from serving.keys import Keys
from serving.metrics import SCOPE
from serving.projection import Atlas
from serving.renewing import Renewing
from serving.searcher import Searcher

FOLDER = "/collections"

T = TypeVar("T")


class Collection:
    """`name`: "" where it is the service's only gallery and at its root. Safe to use from several threads."""

    def __init__(
        self,
        name: str,
        open_searcher: Callable[[], Searcher],
        keys: Keys | None = None,
        open_renewed: Callable[[], Searcher] | None = None,
    ) -> None:
        """open_renewed: how it is opened with a model that the gallery was given since (serving.renewing)."""
        self.name, self.keys, self.atlas = name, keys or Keys(), Atlas()
        self._searchers = Renewing(open_searcher, open_renewed)

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

    def close(self) -> None:
        self._searchers.close()

    def told(self) -> dict[str, Any]:
        """A row of GET /collections; `path`: of its page."""
        card = self.present().embedder.card
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
