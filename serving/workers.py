"""Worker processes that share a listening socket, and the process that watches over them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from serving.watchdog import on_stop_signals

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
"""Seconds between two signs of life of a worker."""
SILENT_SECONDS = 10.0
"""Seconds without any after which a worker is killed, and another one takes its place."""
START_SECONDS = 120.0
"""Seconds until the first of them: a worker has a Python to start."""
LOOK_SECONDS = 0.2

Run = Callable[[socket.socket, Callable[[], None]], None]
"""What a worker does with the socket; it calls the function once it answers."""


@dataclass
class Worker:
    """A process, and the pipe through which it shows that it is alive."""

    process: BaseProcess
    beats: Connection
    is_ready: bool = False
    patience: float = START_SECONDS
    seen: float = field(default_factory=time.monotonic)

    def is_alive(self) -> bool:
        """Return whether the process runs and has shown it within its time."""
        try:
            while self.beats.poll():
                self.is_ready |= self.beats.recv_bytes() == b"1"
                self.seen, self.patience = time.monotonic(), SILENT_SECONDS
        except (EOFError, OSError):
            return False
        return self.process.is_alive() and time.monotonic() - self.seen < self.patience

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.join()
        self.beats.close()


class Supervisor:
    """Starts workers, starts those again that end or stand still, and ends all of them after a stop signal."""

    def __init__(
        self,
        work: Run,
        count: int,
        listening: socket.socket,
        end_seconds: float,
        fatal: int,
        on_start: Callable[[], None],
    ) -> None:
        """Initialise the supervisor.

        Args:
            work: What a worker does.
            count: The number of workers.
            listening: The socket that they share.
            end_seconds: Time for their end after a stop signal.
            fatal: The exit status of a worker that cannot start; then all of them are stopped.
            on_start: Function to call once all workers answer.
        """
        self.work, self.listening, self.end_seconds, self.fatal = work, listening, end_seconds, fatal
        self.on_start: Callable[[], None] | None = on_start
        self.stopping = False
        on_stop_signals(self._stop)
        self.workers = [self._start() for _ in range(count)]

    def run(self) -> list[int | None]:
        """Work until a stop signal, and return the exit status of each worker; a killed one has a negative one."""
        while not self.stopping:
            wait([worker.process.sentinel for worker in self.workers], LOOK_SECONDS)
            self._look()
        return self._end()

    def _start(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        beats, beating = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(self.work, self.listening, beating))
        process.start()
        beating.close()
        return Worker(process, beats)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _look(self) -> None:
        for place, worker in enumerate(self.workers):
            if worker.is_alive():
                continue
            worker.kill()
            if worker.process.exitcode == self.fatal:
                self.stopping = True
            if self.stopping:
                return
            self.workers[place] = self._start()
            pids = worker.process.pid, self.workers[place].process.pid
            logger.warning("worker %d ended or did not answer; worker %d takes its place.", *pids)
        if self.on_start and all(worker.is_ready for worker in self.workers):
            self.on_start()
            self.on_start = None

    def _end(self) -> list[int | None]:
        """Ask the workers to stop, and kill those that a thread keeps alive.

        The socket closes when the last of them closes it, so that clients are refused.
        """
        for worker in self.workers:
            if worker.process.is_alive():
                worker.process.terminate()
        self.listening.close()
        end = time.monotonic() + self.end_seconds
        for worker in self.workers:
            worker.process.join(max(0.0, end - time.monotonic()))
            worker.kill()
        return [worker.process.exitcode for worker in self.workers]


def _work(work: Run, listening: socket.socket, beating: Connection) -> None:
    """Work as one of several processes, and show that this one is alive."""
    ready = threading.Event()
    threading.Thread(target=_beat, args=(beating, ready), daemon=True).start()
    work(listening, ready.set)


def _beat(beating: Connection, ready: threading.Event) -> None:
    """Show the supervisor that this worker is alive, and whether it answers; stop the worker when it is dead."""
    shown = b""
    try:
        while True:
            shown = b"1" if ready.is_set() else b"0"
            beating.send_bytes(shown)
            ready.wait(BEAT_SECONDS) if shown == b"0" else time.sleep(BEAT_SECONDS)
    except OSError:
        os.kill(os.getpid(), signal.SIGTERM)
