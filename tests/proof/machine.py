"""What others take of a machine: processor time that neither the service nor its clients had, or that the host took;
and what cannot be seen so, that cores become slower because others work on their other halves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np

_TICKS = os.sysconf("SC_CLK_TCK")
_LEAST = 0.5
"""Seconds: ticks are too coarse for less."""
_PAUSE = 0.05
"""Seconds from one look at a core's speed to the next."""


class Machine:
    """Its processor time from one look to the next."""

    def __init__(self, pids: Iterable[int]) -> None:
        """`pids`: the processes whose time is not others'; that of this one is not either."""
        self._pids = (os.getpid(), *pids)
        self._before = self._seconds()

    def taken(self) -> float:
        """The part of all cores' time since the last call, or since this was made, that others had; 0 to 1."""
        now, before = self._seconds(), self._before
        if now[0] - before[0] < _LEAST:
            return 0.0
        self._before = now
        return max(0.0, (now[1] - before[1]) / ((now[0] - before[0]) * (os.cpu_count() or 1)))

    def _seconds(self) -> tuple[float, float]:
        """The clock, and the processor time of others so far."""
        # Interrupts, which follow, are those of our own traffic.
        user, nice, system, *_, stolen = (int(word) for word in Path("/proc/stat").read_text().split()[1:9])
        own = sum(_ticks_of(pid) for pid in self._pids)
        return time.perf_counter(), (user + nice + system + stolen - own) / _TICKS


def _ticks_of(pid: int) -> int:
    """Processor time of a process and of its children that have ended, as proc_pid_stat(5) counts it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(word) for word in fields[11:15])


class Pace:
    """How fast the cores are, looked at all the time by a thread of this process, in turns on each of them.

    A core's time goes to whom it is given, but its other half may be somebody else's: a virtual core then takes up to
    twice as long for the same work, and nothing in /proc says so.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def slowness(self, begin: float, end: float) -> float:
        """Mean processor seconds of the fixed piece of work between two moments of `time.perf_counter`; nan of none."""
        seen = np.array([took for at, took in list(self._seen) if begin <= at < end])
        return float(seen.mean()) if len(seen) else float("nan")

    def slowest(self, begin: float, end: float) -> float:
        """The same of the slowest second between two moments."""
        edges = np.arange(begin, end, 1.0)
        return float(np.nanmax([self.slowness(edge, edge + 1) for edge in edges]))

    def _look(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        while not self._ended.wait(_PAUSE):
            os.sched_setaffinity(0, {cores[len(self._seen) % len(cores)]})  # of this thread alone
            self._seen.append((time.perf_counter(), _work()))


def _work() -> float:
    begun, total = time.thread_time(), 0
    for number in range(10_000):
        total += number * number
    return time.thread_time() - begun
