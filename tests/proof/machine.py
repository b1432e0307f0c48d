"""What others take of a machine: processor time that neither the service nor its clients had, or that the host took."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LEAST = 0.5
"""Seconds: ticks are too coarse for less."""


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
