"""Which of several workers takes the next connection: the one that has the fewest.

They share a listening socket, and the kernel gives a connection to whoever asks first. That is often one of them for
all connections that come together, and clients keep their connections: one core would then serve all of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)

AWAY = np.iinfo(np.int32).max
"""The count of a worker that takes no connections."""
NOBODY = -1
"""In place of a count."""
PATIENCE = 0.02
"""Seconds for which a connection is left to a worker with fewer; after that whoever sees it takes it, and leaves no
other one to that worker until its count says that it goes on."""
PAUSE = 1.0
"""Seconds without accepting after the system refused to, as where too many files are open."""


class Counts:
    """How many connections each worker has, in a file that all of them map."""

    def __init__(self, path: Path, workers: int) -> None:
        """A new file; all are away. For the supervisor, who says so again of a worker that ended."""
        np.full(workers, AWAY, np.int32).tofile(path)
        self.path, self._all = path, np.memmap(path, np.int32, "r+")

    def away(self, number: int) -> None:
        """number: 1 for the first."""
        self._all[number - 1] = AWAY


class Turns:
    """Of the worker `number`, 1 for the first."""

    def __init__(self, path: Path, number: int) -> None:
        self._all, self._own = np.memmap(path, np.int32, "r+"), number - 1
        self._slow = np.full(len(self._all), NOBODY, np.int32)

    def tell(self, count: int) -> None:
        """So many connections it has now."""
        self._all[self._own] = count

    def is_mine(self) -> bool:
        """Those who were too slow to take a connection are not waited for, until they have another count."""
        now = np.array(self._all)
        self._slow[self._slow != now] = NOBODY
        return bool(now[self._own] <= now[self._slow == NOBODY].min())

    def before_me(self) -> np.ndarray:
        """The count of each worker that has fewer, int32 [workers]; `NOBODY` for the others."""
        return np.where(self._all < self._all[self._own], self._all, NOBODY).astype(np.int32)

    def were_slow(self, awaited: np.ndarray) -> None:
        """Those of `before_me` of a while ago who have the same count yet, though a connection was there for them."""
        self._slow = np.where(self._all == awaited, awaited, self._slow).astype(np.int32)


class Acceptor:
    """Takes connections from a listening socket that several processes share, in turn. In one event loop."""

    def __init__(
        self, listening: socket.socket, turns: Turns, make: Callable[[], asyncio.Protocol], count: Callable[[], int]
    ) -> None:
        """make: the protocol of a new connection; count: how many there are in this process."""
        listening.setblocking(False)
        self._listening, self._turns, self._make, self._count = listening, turns, make, count
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._awaited = turns.before_me()
        self._arriving: set[asyncio.Task[object]] = set()
        self._watch()

    def tell(self) -> None:
        """Let the others know how many connections there are now; of closed ones nobody hears otherwise."""
        self._turns.tell(self._count() + len(self._arriving))

    def close(self) -> None:
        self._turns.tell(int(AWAY))
        self._loop.remove_reader(self._listening)
        if self._later:
            self._later.cancel()

    def _watch(self) -> None:
        self._loop.add_reader(self._listening, self._look)

    def _look(self) -> None:
        """A connection waits."""
        self.tell()
        if self._turns.is_mine():
            self._take()
        else:
            self._wait(PATIENCE)

    def _wait(self, seconds: float) -> None:
        self._awaited = self._turns.before_me()
        self._loop.remove_reader(self._listening)
        self._later = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        self._watch()
        if self._take():
            self._turns.were_slow(self._awaited)

    def _take(self) -> bool:
        """Whether there was a connection."""
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # another worker was quicker, or the client has given up
        except OSError as error:
            logger.warning("no connection can be accepted: %s; again in %g s.", error.strerror, PAUSE)
            self._wait(PAUSE)
            return False
        connection.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._arriving.add(task)
        task.add_done_callback(self._arrived)
        self.tell()
        return True

    def _arrived(self, task: asyncio.Task[object]) -> None:
        self._arriving.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.debug("a connection was lost at once: %s", str(error))
