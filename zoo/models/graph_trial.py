"""The process that opens an untrusted ONNX graph first.

ONNX Runtime infers shapes and computes the constant parts of a graph while it loads it. A graph of a few bytes
(`Shape`, then a chain of `Concat`) can so take all memory and time, and ONNX Runtime has no bound for it. So another
process loads the graph first, and is ended if it takes too much. Graphs that passed are remembered in the local zoo.
"""

from __future__ import annotations

import math
import mmap
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from zoo import paths
from zoo.errors import ModelFolderError
from zoo.files import sha256_of, write_bytes

MEMORY_BYTES, MEMORY_PER_BYTE = 384 * 2**20, 10
"""The most memory of the process (on Linux): a constant, and an addition for each byte of the file."""

SECONDS, SECONDS_PER_MEGABYTE = 60.0, 1.0
"""The longest time of the process."""

_PAUSE = 0.004
"""Seconds between two looks at the process, in which it takes some megabytes."""

_PROGRAM = """
import ctypes, signal, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: Linux ends this process with its parent
except (ImportError, AttributeError):  # neither Linux
    pass
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
try:
    onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    sys.exit(str(error)[:2000] or type(error).__name__)
"""


def try_graph(path: Path, ort_version: str) -> None:
    """Load a graph in another process, unless this version of ONNX Runtime has loaded the same bytes before.

    Raises:
        ModelFolderError: `unreadable-file` if ONNX Runtime cannot load it within the bounds.
    """
    mark = paths.home() / "cache" / "tried-graphs" / f"{sha256_of(path)}-{ort_version}"
    with suppress(OSError):  # a home that cannot be read, as below
        if mark.exists():
            return
    if reason := _reason_against(path):
        raise ModelFolderError(f"{path} cannot be loaded by ONNX Runtime: {reason}", code="unreadable-file")
    with suppress(OSError):  # a home that cannot be written: the graph is tried again next time
        write_bytes(mark, b"")


def _reason_against(path: Path) -> str:
    """Return why a graph cannot be loaded in a process of its own; empty if it can."""
    size = path.stat().st_size
    memory, seconds = MEMORY_BYTES + MEMORY_PER_BYTE * size, SECONDS + SECONDS_PER_MEGABYTE * size / 1e6
    deadline = time.monotonic() + seconds
    environment = paths.child_environment()
    command = [sys.executable, "-P", "-S", "-c", _PROGRAM, str(path), str(math.ceil(seconds))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True, errors="replace") as process:
        try:
            while process.poll() is None:
                if _memory_of(process.pid) > memory:
                    return f"it takes more than {memory / 1e6:,.0f} MB while it is loaded."
                if time.monotonic() > deadline:
                    return f"it takes more than {seconds:.0f} s to be loaded."
                time.sleep(_PAUSE)
            message = process.stderr.read().strip() if process.stderr else ""
        finally:
            process.kill()  # one that has ended keeps its own status
    return (message or f"it ended with status {process.returncode}.") if process.returncode else ""


def _memory_of(pid: int) -> int:
    """Return the resident bytes of a process; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0
