"""An end that nothing can prevent: a process that does not end by itself after a stop signal is killed.

A thread that never ends keeps Python from ending. If it holds the interpreter lock in C code, Python does not even hear
the signal. So there are two ways: a thread of the process itself, and a second process, a Python without any module of
the service, which hears of signals through `signal.set_wakeup_fd`, whose C code needs no lock.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

KILL_SECONDS = 5.0
"""Seconds after the drain period until a process that has not ended is killed."""
KILLED = 128 + 9
"""Exit status of a process that was killed, as shells show SIGKILL."""
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


def on_stop_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    """Set the handler of this process's stop signals."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def kill_later(seconds: float) -> None:
    """End this process after some seconds, unless it has ended by then. PID 1 of a container takes no SIGKILL."""
    import threading  # which the second process does without

    def end() -> None:
        os.write(sys.stderr.fileno(), b"zoo: a thread did not end in time; the process is killed.\n")
        os._exit(KILLED)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def start_watchdog(seconds: float) -> None:
    """Let a second process kill this one `seconds` after a stop signal, unless it has ended by then."""
    if not hasattr(os, "posix_spawn"):
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    files = [(os.POSIX_SPAWN_DUP2, reading, 0), *silent]
    os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", __file__, str(seconds)], {}, file_actions=files)
    os.close(reading)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def _watch(seconds: float) -> None:
    """Wait for a stop signal of the parent, then for its end, and kill it if that takes longer.

    Standard input has the numbers of its signals, and ends with it.
    """
    parent = os.getppid()
    on_stop_signals(signal.SIG_IGN)  # Ctrl-C and service managers send them to every process
    while (heard := os.read(0, 512)) and not STOP_SIGNALS.intersection(heard):
        pass
    end = time.monotonic() + seconds
    while heard and (left := end - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0]:
            heard = os.read(0, 512)
    if heard and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    _watch(float(sys.argv[1]))
