"""Python as on macOS and Windows: what only Linux has is taken away before anything else is imported."""

from __future__ import annotations

import builtins
import io
import mmap
import os
import signal
import sys
from typing import Any

MODULES = ("fcntl", "resource", "grp", "pwd", "termios", "posix_ipc")
NAMES: dict[Any, tuple[str, ...]] = {
    os: (
        *(
            "sched_getaffinity",
            "sched_setaffinity",
            "fork",
            "forkpty",
            "register_at_fork",
            "posix_spawn",
            "posix_fallocate",
        ),
        *(
            "setpriority",
            "getpriority",
            "nice",
            "getuid",
            "geteuid",
            "getgid",
            "getegid",
            "sysconf",
            "statvfs",
            "mkfifo",
        ),
        *("O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "memfd_create", "copy_file_range", "sendfile"),
        *("sched_yield", "pread", "preadv", "pwrite", "fdatasync", "getxattr", "setxattr", "listxattr", "chown"),
    ),
    signal: ("setitimer", "pthread_sigmask", "SIGPROF", "SIGXCPU", "SIGALRM", "ITIMER_PROF", "pidfd_send_signal"),
    mmap: ("MADV_DONTNEED", "MADV_SEQUENTIAL", "MADV_WILLNEED", "MAP_POPULATE"),
}


class _Missing:
    """Finder of modules that are not there."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def take_away() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Missing())  # type: ignore[arg-type]
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    opened = io.open

    def open_elsewhere(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return opened(file, *args, **options)

    builtins.open = io.open = open_elsewhere


take_away()
