"""Freed memory is kept for the next step instead of being given back: new pages cost as much as the arithmetic."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt, in <malloc.h>
_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Tell glibc to keep up to 1 GiB of freed memory; whether it was told (other C libraries know no such setting).

    Without it every tensor of more than some 100 kB is mapped anew, zeroed page by page and unmapped when it is freed:
    a fifth of a small network's training step on a CPU.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    options = {_MMAP_THRESHOLD: _KEPT, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _KEPT // 8}
    return all(set_option(option, value) for option, value in options.items())
