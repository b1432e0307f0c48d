"""A gallery folder that is kept up with a primary: looked after before every query, and by a thread between them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from serving.following.copying import AnewError, check_same, fetched, make, take, write_beside
from serving.following.primary import CHECK_SECONDS, READ_SECONDS, Primary
from serving.gallery.backends import FOLLOWED, follow
from serving.gallery.gallery import STORE, is_gallery
from serving.gallery.history import Position
from serving.gallery.replica import Replica
from zoo.errors import GalleryError, GalleryExistsError, ZooError
from zoo.files import locked
from zoo.models.card import Card

logger = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds between two looks of the thread: whether the primary is back, or all must be copied anew."""
IDLE = 5.0
"""Seconds without a query after which the thread asks by itself."""


class Follower:
    """Safe to use from several threads; other processes may follow into the same folder, one of them at a time."""

    def __init__(self, folder: Path, primary: Primary, prepare: Callable[[Card, str], None]) -> None:
        """prepare: loads a model that the primary's gallery has been given; where it raises, the old copy is kept."""
        self.folder, self.primary, self._prepare = folder, primary, prepare
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._replica: Replica | None = None
        self._fresh, self._anew, self._said = False, False, ""
        self._asked, self._noted = 0.0, 0.0
        self._watched = False

    @property
    def is_fresh(self) -> bool:
        """Whether the last look found the primary, and nothing of it is lacking here."""
        return self._fresh

    def begin(self) -> None:
        """Make the folder where it is not there, else bring it up to date as far as the primary answers.

        Raises `FollowingError` where there is nothing to answer from, and `GalleryExistsError` for a folder that holds
        something else than what was copied here.
        """
        if not is_gallery(self.folder):
            self._first_copy()
        if self._replica is None:
            if not (self.folder / FOLLOWED).is_file():
                raise GalleryExistsError(
                    f"{self.folder} is a gallery of its own. Follow another one into a folder that is not there yet."
                )
            self._replica = Replica(self.folder / STORE)
        # What must be copied anew is left to the thread: it may take longer than a process may take to start.
        self.look()

    def look(self) -> None:
        """Ask the primary, and take over what changed. Where that cannot be done `is_fresh` says so from then on."""
        with self._lock:
            try:
                self._catch_up()
            except AnewError:
                self._anew = True
                self._failed(f"what {self.primary.url} has is no continuation of what is here; it is copied anew.")
            except (ZooError, OSError) as error:
                self._failed(str(error))
            except Exception:
                self._failed(f"{self.primary.url} cannot be followed.")
                raise
            else:
                self._caught_up()

    def behind(self) -> float | None:
        """None where all is here that the primary had at the last look; else the seconds since it was."""
        if self._fresh:
            return None
        try:
            return max(0.0, time.time() - (self.folder / FOLLOWED).stat().st_mtime)
        except OSError:
            return 0.0

    def watch(self) -> None:
        """From now on a thread looks too: while the primary is away, and when nobody has asked for a while."""

        def run() -> None:
            while not self._ended.wait(PAUSE):
                try:
                    self._tend()
                except Exception:  # the next look will say it again
                    logger.exception("%s cannot be followed", self.primary.url)

        if not self._watched:
            self._watched = True
            threading.Thread(target=run, name="following", daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        with self._lock:
            if self._replica is not None:
                self._replica.close()
            self.primary.close()

    def _tend(self) -> None:
        if self._anew:
            self._renew()
        elif not self._fresh or time.monotonic() - self._asked > IDLE:
            self.look()

    def _first_copy(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise GalleryExistsError(f"{self.folder} is there and holds no gallery; follow into a folder of its own.")
        parent = self.folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        with locked(parent):
            if not is_gallery(self.folder):  # another process was first
                with fetched(self.primary, parent, None, None) as what:
                    make(self.folder, what)

    def _catch_up(self) -> None:
        replica = self._opened()
        self._asked = time.monotonic()
        known, fingerprint = _known(replica), replica.fingerprint()
        seconds = CHECK_SECONDS if self._fresh else READ_SECONDS  # queries wait for it only where all is here so far
        head, _ = self.primary.changes(known.number, known.history, 1, seconds)
        check_same(head, known, fingerprint)
        if head.last != known.number:
            with locked(self.folder / FOLLOWED):
                # Another process may have taken it over meanwhile.
                known, fingerprint = _known(replica), replica.fingerprint()
                with fetched(self.primary, self.folder, known, fingerprint) as what:
                    take(replica, what)
        with suppress(OSError):  # of a full disk: the next look tries again, and the items are here
            follow(self.folder, head.backend)

    def _renew(self) -> None:
        """Copy all anew, and let it take the place of what is here, from which queries are answered meanwhile."""
        replica = self._opened()
        try:
            with locked(self.folder / FOLLOWED):
                if not self._is_other(replica):  # another process was first
                    self._anew = False
                    return
                with fetched(self.primary, self.folder, None, None) as what:
                    assert what.model is not None
                    self._prepare(*what.model)
                    take(replica, what)
                    write_beside(self.folder, what)
        except (AnewError, ZooError, OSError) as error:
            self._failed(str(error) or f"{self.primary.url} changes while it is copied.")
        else:
            self._anew = False
            logger.warning("%s was copied anew.", self.primary.url)
            self.look()

    def _is_other(self, replica: Replica) -> bool:
        known = _known(replica)
        head, _ = self.primary.changes(known.number, known.history, limit=1)
        try:
            check_same(head, known, replica.fingerprint())
        except AnewError:
            return True
        return False

    def _opened(self) -> Replica:
        if self._replica is None:
            raise GalleryError(f"{self.folder} is not open.")
        return self._replica

    def _caught_up(self) -> None:
        """All that the primary has is here, which may follow another one and know of nothing newer itself."""
        if self.primary.is_behind:
            self._failed(f"{self.primary.url} follows another service itself, which it cannot ask.")
        else:
            self._succeeded()

    def _succeeded(self) -> None:
        if self._said:
            logger.warning("%s is followed again; all that it has is here.", self.primary.url)
        self._fresh, self._anew, self._said = True, False, ""
        now = time.monotonic()
        if now - self._noted > 1:
            self._noted = now
            with suppress(OSError):  # of a disk that takes nothing more, which is as good as long as nothing changes
                os.utime(self.folder / FOLLOWED)

    def _failed(self, reason: str) -> None:
        self._fresh = False
        if reason != self._said:
            logger.warning("%s Queries are answered from what is here.", reason)
        self._said = reason


def _known(replica: Replica) -> Position:
    return replica.position() or Position("", 0)
