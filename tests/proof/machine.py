"""Use of a machine by other programs: their processor time, and the speed of the cores.

Processor time that the host took counts too. The speed shows a load that no processor time shows: cores become slower
when others work on their second halves.
"""

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
"""Shortest period in seconds: ticks are too coarse for less."""
_PAUSE = 0.05
"""Seconds between two measurements of a core's speed."""


class Machine:
    """Processor time of a machine between two readings."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Begin a period; the time of `pids` and of this process counts as our own."""
        self._pids = (os.getpid(), *pids)
        self._before = self._seconds()

    def taken(self) -> float:
        """Return the part of all cores' time that others had since the last call or the beginning, 0 to 1."""
        now, before = self._seconds(), self._before
        if now[0] - before[0] < _LEAST:
            return 0.0
        self._before = now
        return max(0.0, (now[1] - before[1]) / ((now[0] - before[0]) * (os.cpu_count() or 1)))

    def _seconds(self) -> tuple[float, float]:
        """Return the clock and the processor time of others so far."""
        # The interrupts that follow come from our own traffic.
        user, nice, system, *_, stolen = (int(word) for word in Path("/proc/stat").read_text().split()[1:9])
        own = sum(_ticks_of(pid) for pid in self._pids)
        return time.perf_counter(), (user + nice + system + stolen - own) / _TICKS


def _ticks_of(pid: int) -> int:
    """Return the processor time of a process and of its ended children, see proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(word) for word in fields[11:15])


class Pace:
    """Speed of the cores, which a thread of this process measures all the time, on one core after the other.

    Another machine may use the second half of a core: a virtual core then takes up to twice as long for the same work,
    and nothing in /proc shows it.
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
        """Return the mean processor seconds of a fixed piece of work between two moments of `perf_counter`, or nan."""
        seen = np.array([took for at, took in list(self._seen) if begin <= at < end])
        return float(seen.mean()) if len(seen) else float("nan")

    def slowest(self, begin: float, end: float) -> float:
        """Return the slowness of the slowest second between two moments."""
        edges = np.arange(begin, end, 1.0)
        return float(np.nanmax([self.slowness(edge, edge + 1) for edge in edges]))

    def _look(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        while not self._ended.wait(_PAUSE):
            os.sched_setaffinity(0, {cores[len(self._seen) % len(cores)]})  # only of this thread
            self._seen.append((time.perf_counter(), _work()))


def _work() -> float:
    begun, total = time.thread_time(), 0
    for number in range(10_000):
        total += number * number
    return time.thread_time() - begun
