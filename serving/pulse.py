"""Whether a worker still answers: GET /livez at a socket of its own, asked and awaited without standing still.

The socket that all workers share says nothing of one of them: where one hangs, another answers.
"""

from __future__ import annotations

import socket
from pathlib import Path

EVERY = 1.0
"""Seconds from an answer to the next question."""
LONGEST_START = 600.0
"""Seconds within which a new process must give its first answer: it loads models and galleries."""
LONGEST_STEP = 1.0
"""Seconds of silence that one look may add: who was stopped himself cannot tell how long the others were silent."""

_QUESTION = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Pulse:
    """Of one place for a worker: its processes come and go, the socket stays.

    `silent`: seconds since the process that is there now gave a sign of life.
    """

    def __init__(self, path: Path) -> None:
        """path: of the socket, in a folder that nobody else can enter."""
        self._path = str(path)
        self._asked: socket.socket | None = None
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(self._path)
        self.listening.listen(8)
        self.begin(0.0)

    def begin(self, now: float, answers: bool = False) -> None:
        """A new process is in the place; `answers`: it has said that it does."""
        self.silent, self._looked, self._next, self._heard = 0.0, now, now, answers
        self._forget()

    def hangs(self, now: float, seconds: float) -> bool:
        """Look once; whether the process has been silent for so many seconds, or has never got so far as to answer."""
        self.silent += min(now - self._looked, LONGEST_STEP)
        self._looked = now
        if self._asked is None and now >= self._next:
            self._ask()
        if self._asked is not None and self._answered(self._asked):
            self.silent, self._next, self._heard = 0.0, now + EVERY, True
        return self.silent > (seconds if self._heard else max(seconds, LONGEST_START))

    def close(self) -> None:
        self._forget()
        self.listening.close()

    def _ask(self) -> None:
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asked.setblocking(False)
        try:
            asked.connect(self._path)
            asked.sendall(_QUESTION)
        except OSError:  # its queue is full
            asked.close()
        else:
            self._asked = asked

    def _answered(self, asked: socket.socket) -> bool:
        try:
            answer = asked.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            answer = b""
        self._forget()
        return answer.startswith(b"HTTP/1.1 200 ")

    def _forget(self) -> None:
        if self._asked is not None:
            self._asked.close()
            self._asked = None
