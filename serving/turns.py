"""Which of several workers takes the next connection: the one that has the fewest.

They share a listening socket, and the kernel gives a connection to whoever asks first. That is often one of them for
all connections that come together, and clients keep their connections: one core would then serve all of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)

AWAY = np.iinfo(np.int32).max
"""The count of a worker that takes no connections."""
NOBODY = -1
"""In place of a count and a beat."""
PATIENCE = 0.02
"""Seconds for which a connection is left to a worker with fewer; after that whoever sees it takes it, and leaves no
other one to that worker until its count or its beat says that it goes on."""
STEP = 0.001
"""Seconds after which whoever left a connection looks for it again: meanwhile the turn may have come to it."""
LAST_CALL = 0.2
"""Seconds that those who were accepted have for a request, once the process is told to stop and accepts nobody more."""
LONGEST_CALL = 1.0
"""Seconds in which a process that is told to stop accepts who waits at its socket: with that they would be reset."""
PAUSE = 1.0
"""Seconds without accepting after the system refused to, as where too many files are open."""


def anybody_waits(listening: socket.socket) -> bool:
    """Whether the kernel has a connection that nobody has accepted yet."""
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    return bool(waiting.poll(0))


def last_calls(listening: socket.socket) -> Iterator[None]:
    """For whoever is about to close the socket: a turn to sleep for as long as somebody waits there, `LONGEST_CALL` at
    most. Where they come faster than they are accepted, the kernel is told to let no more in."""
    begun = time.monotonic()
    while anybody_waits(listening) and (passed := time.monotonic() - begun) < LONGEST_CALL:
        if passed > LONGEST_CALL / 2:
            listening.listen(0)
        yield


class Counts:
    """How many connections each worker has, in a file that all of them map: int32 [workers, 2], a count and a beat.

    The beat changes with each connection that the worker takes, and as long as its event loop runs. The count alone
    would not do: of one that hung without connections it stays as it is, for whoever does not wait for it takes what
    would change it; and of one whose connections come and go it is often the same.
    """

    def __init__(self, path: Path, workers: int) -> None:
        """A new file; all are away. For the supervisor, who says so again of a worker that ended."""
        np.full((workers, 2), (AWAY, 0), np.int32).tofile(path)
        self.path, self._all = path, _mapped(path)

    def away(self, number: int) -> None:
        """number: 1 for the first."""
        self._all[number - 1, 0] = AWAY


class Turns:
    """Of the worker `number`, 1 for the first."""

    def __init__(self, path: Path, number: int) -> None:
        self._all, self._own = _mapped(path), number - 1
        self._slow = np.full_like(self._all, NOBODY)

    def tell(self, count: int) -> None:
        """So many connections it has now."""
        self._all[self._own, 0] = count

    def beat(self) -> None:
        """Its event loop runs."""
        self._all[self._own, 1] = (self._all[self._own, 1] + 1) % AWAY

    def is_mine(self) -> bool:
        """Those who were too slow to take a connection are not waited for, until they have another count or beat."""
        now = np.array(self._all)
        self._slow[(self._slow != now).any(1)] = NOBODY
        awaited = now[self._slow[:, 0] == NOBODY]
        return bool(now[self._own, 0] <= awaited[:, 0].min())

    def before_me(self) -> np.ndarray:
        """Count and beat of each worker that has fewer, int32 [workers, 2]; `NOBODY` for the others."""
        now = np.array(self._all)
        return np.where(now[:, :1] < now[self._own, 0], now, NOBODY).astype(np.int32)

    def were_slow(self, awaited: np.ndarray) -> None:
        """Those of `before_me` of a while ago who are the same yet, though a connection was there for them."""
        same = (self._all == awaited).all(1, keepdims=True)
        self._slow = np.where(same, awaited, self._slow).astype(np.int32)


def _mapped(path: Path) -> np.ndarray:
    return np.memmap(path, np.int32, "r+").reshape(-1, 2)


class Acceptor:
    """Takes connections from a listening socket that several processes share, in turn. In one event loop."""

    def __init__(
        self,
        listening: socket.socket,
        turns: Turns,
        make: Callable[[], asyncio.Protocol],
        connections: Collection[asyncio.Protocol],
    ) -> None:
        """make: the protocol of a new connection; connections: those of this process, as they are made and lost."""
        listening.setblocking(False)
        self._listening, self._turns, self._make, self._connections = listening, turns, make, connections
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._since, self._awaited, self._able = 0.0, turns.before_me(), True
        self._arriving: dict[asyncio.Protocol, asyncio.Task[object]] = {}
        self.closed = asyncio.Event()
        self._watch()

    def tick(self) -> None:
        """For the event loop, often: the others know that it runs, and of closed connections."""
        self._turns.beat()
        self._tell()

    def close(self) -> None:
        self.closed.set()
        self._turns.tell(int(AWAY))
        self._loop.remove_reader(self._listening)
        if self._later:
            self._later.cancel()

    def _tell(self) -> None:
        arriving = sum(protocol not in self._connections for protocol in self._arriving)
        self._turns.tell(len(self._connections) + arriving if self._able else int(AWAY))

    def _watch(self) -> None:
        self._loop.add_reader(self._listening, self._look)

    def _look(self) -> None:
        """A connection waits."""
        self._since, self._awaited = self._loop.time(), self._turns.before_me()
        self._decide()

    def _decide(self) -> None:
        self._tell()
        if self._turns.is_mine():
            self._take()
        elif self._loop.time() < self._since + PATIENCE:
            self._pause(STEP)
        elif self._take():
            self._turns.were_slow(self._awaited)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._later = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        """Where one waits yet, it may be the one from before the pause, and has waited since then."""
        self._able = True
        self._watch()
        if anybody_waits(self._listening):
            self._decide()

    def _take(self) -> bool:
        """Whether there was a connection."""
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False  # another worker was quicker, or the client has given up
        except OSError as error:
            if error.errno == errno.EINVAL:  # the supervisor has shut it down: there will be no more
                self.close()
                return False
            logger.warning("no connection can be accepted: %s; again in %g s.", error.strerror, PAUSE)
            self._able = False  # so that nobody leaves a connection to it
            self._tell()
            self._pause(PAUSE)
            return False
        connection.setblocking(False)
        protocol = self._make()
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: protocol, connection))
        self._arriving[protocol] = task
        task.add_done_callback(lambda task: self._arrived(protocol, task))
        self.tick()
        return True

    def _arrived(self, protocol: asyncio.Protocol, task: asyncio.Task[object]) -> None:
        del self._arriving[protocol]
        if not task.cancelled() and (error := task.exception()):
            logger.debug("a connection was lost at once: %s", str(error))
