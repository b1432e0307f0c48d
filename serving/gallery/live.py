"""The index of an open gallery, kept up with its store, and compacted when that is worth while."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import faiss

from serving.gallery import compaction
from serving.gallery.compaction import BusyError
from serving.gallery.generation import NONE, Facts, open_generation
from serving.gallery.index import Index
from serving.gallery.items import IndexStats
from serving.gallery.measuring import Measured
from serving.gallery.store import Store
from zoo.errors import GalleryError, ModelChangedError

logger = logging.getLogger(__name__)

RETRY_SECONDS, MOST_RETRY_SECONDS = 60.0, 3600.0
"""After a compaction that failed, as where the disk was full: when it is tried again; twice as late each time."""
BUSY_SECONDS = 1.0
"""Where another process compacts."""


class LiveIndex:
    """Every process has its own, and catches up with the store by its change number before it answers."""

    def __init__(self, folder: Path, store: Store, device: str = "cpu") -> None:
        """`store`: that of the gallery in `folder`; who made it closes it. device: as `Index` takes it."""
        self.folder, self._store, self._device = folder, store, device
        self._catching_up, self._compacting = threading.Lock(), threading.Lock()
        self._in_background = False
        self._not_before, self._pause = -math.inf, RETRY_SECONDS
        self._index, self._facts = self._newest()

    def close(self) -> None:
        """Nothing is held that has to be let go; the store is closed by who made it."""

    def current(self) -> Index:
        """The index, brought up to the store's last change and its generation: cheap where nothing changed."""
        index = self._index
        if self._store.position() != (index.change, index.generation):
            index = self._catch_up()
        if self._in_background and compaction.is_due(index.waiting, len(index)) and time.monotonic() > self._not_before:
            self._start_compaction()
        return index

    def _catch_up(self) -> Index:
        with self._catching_up:
            index, facts = self._index, self._facts
            if self._store.position()[1] != index.generation:
                index, facts = self._newest()
            # What is searched already takes changes over at once, and not block by block.
            changes = self._store.changes_since(index.change)
            index.apply(changes)
            if len(index) != changes.count:
                index, facts = self._rebuilt(index.generation)
            self._index, self._facts = index, facts
            return index

    def stats(self) -> IndexStats:
        index, facts = self.current(), self._facts
        setting, measured = index.setting, facts if facts and facts.recall is not None else None
        return IndexStats(
            kind=setting.kind,
            effort=setting.effort,
            shortlist=setting.shortlist,
            recall=measured.recall if measured else None,
            k=measured.k if measured else None,
            milliseconds=measured.milliseconds if measured else None,
            generation=index.generation,
            frozen=facts.count if facts else 0,
            waiting=index.waiting,
            bytes=_size(self.folder / index.generation) if facts else 0,
            device=index.device,
        )

    def is_due(self) -> bool:
        """Whether a compaction is worth its time now: what has come is counted, and not read."""
        if self._store.position()[1] != self._index.generation:
            self.current()
        held = self._facts.change if self._facts else 0
        return compaction.is_due(self._store.changed_since(held), self._store.count())

    def compact(self) -> Facts | None:
        with self._compacting, self._store.again().closing() as store:
            return compaction.compact(self.folder, store)

    def finish(self) -> None:
        """Compact if that is due and nobody else does; where it cannot be done, the gallery is as good without."""
        if not self._in_background:
            with self._compacting, suppress(ModelChangedError):
                if self.is_due():
                    self._try_to_compact()

    def tune(
        self, recall: float, k: int, kinds: Sequence[str]
    ) -> tuple[Facts | None, list[tuple[str, Measured | None]]]:
        with self._compacting, self._store.again().closing() as store:
            return compaction.tune(self.folder, store, recall, k, kinds)

    def compact_in_background(self) -> None:
        """From now on, where a compaction is due, a thread of this process does it unless another process does."""
        self._in_background = True

    def _opened(self, generation: str) -> tuple[Index, Facts | None]:
        """The generation of that name, or an empty index in its place where its files are not right."""
        if not generation or generation.startswith(NONE):
            return Index(self._store.dim, generation=generation), None
        try:
            found = open_generation(self.folder / generation, self._store.fingerprint, self._store.dim)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            if self._store.position()[1] == generation:
                logger.info("%s: the index is built from the store; its file is not used: %s.", self.folder, error)
            return Index(self._store.dim, generation=generation), None
        return Index(self._store.dim, found[0], found[1].change, generation, self._device), found[1]

    def _newest(self) -> tuple[Index, Facts | None]:
        """The generation that counts, with what came since; another may come, and this one go, before it is open."""
        while True:
            index, facts = self._opened(self._store.position()[1])
            if index.generation == self._store.position()[1]:
                break
        with self._store.reading_since(index.change) as new:
            index.fill(new)
        return (index, facts) if len(index) == new.count else self._rebuilt(index.generation)

    def _rebuilt(self, generation: str) -> tuple[Index, None]:
        logger.warning("the index of %s does not add up; it is built anew from the store.", self.folder)
        index = Index(self._store.dim, generation=generation)
        with self._store.reading_since(0) as whole:
            index.fill(whole)
        return index, None

    def _try_to_compact(self) -> None:
        try:
            with self._store.again().closing() as store:
                compaction.compact(self.folder, store, wait=False)
        except BusyError:
            self._not_before = time.monotonic() + BUSY_SECONDS
        except Exception as error:  # in the background nobody else would hear of it, and search after search try again
            logger.warning("%s", error, exc_info=not isinstance(error, GalleryError))
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, MOST_RETRY_SECONDS)
        else:
            self._pause = RETRY_SECONDS

    def _start_compaction(self) -> None:
        if not self._compacting.acquire(blocking=False):
            return

        def run() -> None:
            try:
                faiss.omp_set_num_threads(1)  # of this thread alone: searches have the other cores
                self._try_to_compact()
            finally:
                self._compacting.release()

        # Killed with the process, it leaves a folder that nobody uses and the next compaction removes.
        threading.Thread(target=run, name="compaction", daemon=True).start()


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:  # the next generation has just taken its place
        return 0
