"""The processor of this machine: its instruction sets and cores."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def flags() -> frozenset[str] | None:
    """The names of its instruction sets, as Linux has them: "avx2", "avx512_vnni"; None where nobody says."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:  # no Linux
        return None


def threads() -> int:
    """Return how many threads a process may use: the cores, or fewer where OMP_NUM_THREADS says so."""
    cores, allowed = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(allowed)) if allowed.isdecimal() and int(allowed) else cores
