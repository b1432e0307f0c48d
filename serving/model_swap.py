"""The searcher of a gallery, and its replacement once the gallery has another model, while requests continue.

A searcher holds one model and that model's view of the gallery, and never changes: every answer belongs to one model,
from the image to the similarity. When the gallery gets another model, the old view refuses (`ModelChangedError`). The
first request that notices opens the new searcher, and all requests start again with it; they wait, and none is refused.
A rebuild announces its swap some seconds before, so that the model is loaded by then and requests hardly wait. The same
happens when the gallery's folder is replaced by another (`GalleryMovedError`); while no gallery is there, requests are
refused.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from serving.errors import RefusedError
from serving.gallery.search import Models, Searcher
from zoo.errors import GalleryError, GalleryMovedError, ModelChangedError, ZooError
from zoo.models.load import Embedder

logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at what a gallery announces."""
RETRY_SECONDS = 10.0
"""Seconds before a model that could not be loaded is tried again."""
MOVED_SECONDS = 0.2
"""Seconds before a gallery that is not in its place is looked for again."""

T = TypeVar("T")
OpenSearcher = Callable[[], Searcher]


class CurrentSearcher:
    """The searcher of the model that a gallery has now. Threads may share it."""

    def __init__(
        self, open_searcher: OpenSearcher, open_renewed: OpenSearcher | None = None, models: Models | None = None
    ) -> None:
        """Initialise without opening anything.

        Args:
            open_searcher: Opens the first searcher.
            open_renewed: Opens the searcher of a later model (default: as the first).
            models: The models from which both take theirs; an announced model is loaded into them.
        """
        self._open, self._open_renewed, self._models = open_searcher, open_renewed or open_searcher, models
        self._lock, self._renewal_lock = threading.Lock(), threading.Lock()
        self._searcher: Searcher | None = None
        self._retry_time, self._logged_failure = 0.0, ""
        self._prepared: Embedder | None = None
        self._closed, self._watcher = threading.Event(), threading.Thread(target=self._watch, daemon=True)

    @property
    def searcher(self) -> Searcher:
        """The searcher that was opened last; it is opened at first use. It may be of a former model: see `run`."""
        with self._lock:
            if self._searcher is None:
                self._searcher = _served(self._open)
            return self._searcher

    def run(self, work: Callable[[Searcher], T]) -> T:
        """Return the result of `work`, called again if the gallery got another model or folder meanwhile.

        Raises:
            RefusedError: 503 if the new model cannot be loaded.
            GalleryMovedError: If no gallery is in the folder.
        """
        searcher = self.searcher
        while True:
            try:
                return work(searcher)
            except (ModelChangedError, GalleryMovedError) as error:
                searcher = self._renewed(searcher, error)

    def latest(self) -> Searcher:
        """Return the searcher of the model that the gallery has now; this may wait for that model."""
        searcher = self.run(_checked)
        self._logged_failure = ""
        return searcher

    def start(self) -> None:
        """Open the searcher, and start a thread that takes new models over before a request needs them."""
        _ = self.searcher
        with self._lock:
            if not self._watcher.is_alive() and not self._closed.is_set():
                self._watcher.start()

    def look(self) -> None:
        """Load the model that the gallery announces, if any."""
        coming = self.latest().gallery.coming()
        if coming is None:
            self._prepared = None
        elif self._models is not None and self._prepared is None:
            self._prepared = self._models.load(*coming)

    def close(self) -> None:
        """Stop watching, and close the searcher."""
        self._closed.set()
        with self._lock:
            if self._searcher is not None:
                self._searcher.close()
                self._searcher = None

    def _watch(self) -> None:
        while not self._closed.wait(INTERVAL):
            try:
                self.look()
            except Exception as error:  # the next request, or the next look, raises it again
                logger.debug("%s", str(error))

    def _renewed(self, old: Searcher, reason: ModelChangedError | GalleryMovedError) -> Searcher:
        with self._renewal_lock:  # one thread opens it, the others wait
            if self.searcher is not old:
                return self.searcher
            if time.monotonic() < self._retry_time:
                raise _refusal(reason)
            new = self._opened(old, reason)
            with self._lock:
                self._searcher = new
        # Requests may still use the old one; its store is closed when the last of them releases it.
        weakref.finalize(old.gallery, old.gallery.store.close)
        event = "another model" if isinstance(reason, ModelChangedError) else "been replaced; its model"
        logger.info("%s has %s now: %s.", new.gallery.address, event, new.embedder.card.name)
        return new

    def _opened(self, old: Searcher, reason: ModelChangedError | GalleryMovedError) -> Searcher:
        try:
            return _served(self._open_renewed)
        except ZooError as error:
            is_moved = isinstance(reason, GalleryMovedError)
            if str(error) != self._logged_failure:  # once, and not for every request
                event = "moved, removed or replaced" if is_moved else "given another model"
                logger.warning("%s was %s, and cannot be served now: %s", old.gallery.address, event, str(error))
                self._logged_failure = str(error)
            pause = MOVED_SECONDS if is_moved and isinstance(error, GalleryError) else RETRY_SECONDS
            self._retry_time = time.monotonic() + pause
            raise _refusal(reason) from None


def _served(open_searcher: OpenSearcher) -> Searcher:
    """Open a searcher, try its text tower, and let its index compact in the background."""
    searcher = open_searcher()
    try:
        searcher.check_texts()
    except BaseException:
        searcher.close()
        raise
    searcher.gallery.index.compact_in_background()
    return searcher


def _checked(searcher: Searcher) -> Searcher:
    searcher.gallery.store.check_current()
    return searcher


def _refusal(reason: ModelChangedError | GalleryMovedError) -> Exception:
    if isinstance(reason, GalleryMovedError):
        return reason
    message = "The gallery has another model, which the service cannot load; its log says why."
    return RefusedError(503, "model_changed", message, {"Retry-After": str(int(RETRY_SECONDS))})
