"""Use of a machine by other programs: their processor time, and the speed of the cores.

Processor time that the host took counts too. The speed shows a load that no processor time shows: cores become slower
when others work on their second halves.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
import psutil

_TICKS = os.sysconf("SC_CLK_TCK")
_LEAST = 0.5
"""Shortest period in seconds: ticks are too coarse for less."""
_PAUSE = 0.05
"""Seconds between two measurements of a core's speed."""


class Machine:
    """Processor time of a machine between two readings."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Begin a period; the time of this process, of `pids` and of their descendants counts as our own."""
        self._pids = tuple(pids)
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
        own = time.process_time() + sum(_seconds_of(pid) for pid in self._pids)
        return time.perf_counter(), (user + nice + system + stolen) / _TICKS - own


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants that live, such as the decoders of a service."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _seconds_of(pid: int) -> float:
    """Return the processor time of a process, of its descendants and of those that have ended."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class Pace:
    """Speed of the cores, which a thread of this process measures all the time, on one core after the other.

    Another machine may use the second half of a core: a virtual core then takes up to twice as long for the same work,
    and nothing in /proc shows it.
    """

    def __init__(self, cores: Iterable[int]) -> None:
        self._cores = sorted(cores)
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
        while not self._ended.wait(_PAUSE):
            os.sched_setaffinity(0, {self._cores[len(self._seen) % len(self._cores)]})  # only of this thread
            self._seen.append((time.perf_counter(), _work()))


def _work() -> float:
    begun, total = time.thread_time(), 0
    for number in range(10_000):
        total += number * number
    return time.thread_time() - begun
