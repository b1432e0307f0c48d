"""The searcher of a gallery, and that of its new model once it was given one, while requests go on.

A searcher holds one model and that model's view of the gallery, and never changes: what it answers is of one model from
the image to the similarity. Where the gallery was given another model, the old view refuses (`ModelChangedError`), the
new searcher is opened by the first request that finds out, and all begin anew with it. They wait for so long; none is
refused. A rebuild announces a swap some seconds before, so that the model is loaded by then and they wait for next to
nothing. So it goes too where the gallery's folder was exchanged for another one (`GalleryMovedError`); while there is
none in its place, all are refused.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from serving.gallery.search import Models, Searcher
from serving.refusals import RefusedError
from zoo.errors import GalleryMovedError, ModelChangedError, ZooError
from zoo.models.load import Embedder

logger = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at what a gallery announces."""
PAUSE = 10.0
"""Seconds after which a model that could not be loaded is tried again."""

T = TypeVar("T")
Opens = Callable[[], Searcher]


class Renewing:
    """Safe to use from several threads."""

    def __init__(self, open_searcher: Opens, open_renewed: Opens | None = None, models: Models | None = None) -> None:
        """open_renewed: how it is opened with a model that the gallery was given since; by default in the same way.

        models: those that both take theirs from.
        """
        self._open, self._open_renewed = open_searcher, open_renewed or open_searcher
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._searcher: Searcher | None = None
        self._not_before = 0.0
        self._models = models
        self._prepared: Embedder | None = None
        self._ended, self._watched = threading.Event(), False

    @property
    def current(self) -> Searcher:
        """The one that was opened last, at first use. It never waits for a new model."""
        with self._lock:
            if self._searcher is None:
                self._searcher = self._open()
            return self._searcher

    def steadily(self, work: Callable[[Searcher], T]) -> T:
        """What `work` makes of the searcher; it is begun anew where the gallery was given another model meanwhile, or
        was exchanged for another one.

        Raises `RefusedError` (503) where that model cannot be loaded, `GalleryMovedError` where no gallery is there.
        """
        searcher = self.current
        while True:
            try:
                return work(searcher)
            except (ModelChangedError, GalleryMovedError) as error:
                searcher = self._renewed(searcher, error)

    def present(self) -> Searcher:
        """The searcher of the model that the gallery has now."""
        return self.steadily(_checked)

    def watch(self) -> None:
        """From now on a thread looks every second: it loads a model that is announced, and takes over one that came."""

        def run() -> None:
            while not self._ended.wait(EVERY):
                try:
                    self.look()
                except Exception as error:  # the next request, or the next look, will say it again
                    logger.debug("%s", str(error))

        with self._lock:
            watched, self._watched = self._watched, True
        if not watched:
            threading.Thread(target=run, name="renewing", daemon=True).start()

    def look(self) -> None:
        """Load the model that is announced, if any, so that it is at hand when the gallery is given it."""
        coming = self.present().gallery.coming()
        if coming is None:
            self._prepared = None
        elif self._models is not None and self._prepared is None:
            self._prepared = self._models.load(coming[0].fingerprint, coming[1])

    def close(self) -> None:
        self._ended.set()
        with self._lock:
            if self._searcher is not None:
                self._searcher.close()
                self._searcher = None

    def _renewed(self, stale: Searcher, why: ModelChangedError | GalleryMovedError) -> Searcher:
        with self._renewing:  # one opens it, the others wait
            if self.current is not stale:
                return self.current
            if time.monotonic() < self._not_before:
                raise _cannot(why)
            new = self._opened(stale, why)
            with self._lock:
                self._searcher = new
        # Requests may be under way with the old one; its store is closed when the last of them lets go of it.
        weakref.finalize(stale.gallery, stale.gallery.closer())
        what = "another model" if isinstance(why, ModelChangedError) else "been exchanged; its model"
        logger.info("%s has %s now: %s.", new.gallery.path, what, new.embedder.card.name)
        return new

    def _opened(self, stale: Searcher, why: ModelChangedError | GalleryMovedError) -> Searcher:
        try:
            new = self._open_renewed()
            new.check_texts()
        except ZooError as error:
            what = "given another model" if isinstance(why, ModelChangedError) else "moved, removed or exchanged"
            logger.warning("%s was %s, and cannot be served now: %s", stale.gallery.path, what, str(error))
            self._not_before = time.monotonic() + PAUSE
            raise _cannot(why) from None
        new.gallery.index.compact_in_background()
        return new


def _checked(searcher: Searcher) -> Searcher:
    searcher.gallery.store.check_current()
    return searcher


def _cannot(why: ModelChangedError | GalleryMovedError) -> Exception:
    if isinstance(why, GalleryMovedError):
        return why
    message = "The gallery was given another model, which the service cannot load; its log says why."
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "model_changed", message, {"Retry-After": str(int(PAUSE))})
