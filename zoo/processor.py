"""What this machine's processor can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def flags() -> frozenset[str] | None:
    """The names of its instruction sets, as Linux has them: "avx2", "avx512_vnni"; None where nobody says."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:  # no Linux
        return None
