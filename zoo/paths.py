"""Folders of this machine (`ZOO_HOME` for trained models and caches, `ZOO_DATA` for data sets), paths as users write
them, and facts about the machine: processor, cores and library versions.
"""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

SHIPPED = Path(__file__).parent / "checkpoints"
"""The model folders that come with the package."""


def home() -> Path:
    """Return the folder of the local zoo: `ZOO_HOME`, else `~/.dml-zoo`."""
    return expand(os.environ.get("ZOO_HOME") or "~/.dml-zoo")


def local_models() -> Path:
    """Return the folder to which `zoo train` writes models and in which `zoo.load` looks for them by name."""
    return home() / "models"


def download_cache() -> Path:
    """Return the folder of downloaded data sets."""
    return home() / "data"


def data_roots(given: str | Path | None = None) -> list[Path]:
    """Return the folders in which to look for a data set.

    Args:
        given: The only folder to look in. By default these are `ZOO_DATA`, if set, and the download cache.
    """
    if given is not None:
        return [expand(given)]
    data = os.environ.get("ZOO_DATA")
    return [expand(data), download_cache()] if data else [download_cache()]


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder exists; False also for names that the file system does not accept."""
    try:
        return expand(path).is_dir()
    except OSError:
        return False


def expand(path: str | os.PathLike[str]) -> Path:
    """Replace `~` and `~user` by the home folder; a path of an unknown user stays unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


LABEL_KEYS = ("train_classes", "test_classes", "seen_by_base", "seen_by_teacher")
"""Keys of lists of labels. A label may look like a path (/m/01g317 is a class of Open Images) without being one."""

_LONE_PATH = re.compile(r"(file:/*|~[\w.-]*|\.{1,2})?/")
"""Beginning of a text that is one full path."""
_PATH_IN_TEXT = re.compile(r"(?<![\w.~/])(?!(?<=:)//)(~[\w.-]*)?/[^\s,;:'\"()]+")
"""A full path within a sentence. It is neither `org/name` nor a web address."""
_FILE_ADDRESS = re.compile(r"file:/+[^\s,;:'\"()]*")


def without_paths(value: Any) -> Any:
    """Cut every full path in the texts of a JSON value to its last part, so that a record can be published.

    A path names its owner's account, folders and work, and means nothing on another machine.
    """
    if isinstance(value, dict):
        return {key: inner if key in LABEL_KEYS else without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    return _cut_paths(value) if isinstance(value, str) else value


def _cut_paths(text: str) -> str:
    if _LONE_PATH.match(text):  # to its end, as names of folders may hold spaces
        return PurePosixPath(text).name
    return _PATH_IN_TEXT.sub(_last_part, _FILE_ADDRESS.sub(_last_part, text))


def _last_part(match: re.Match[str]) -> str:
    return PurePosixPath(match[0]).name


_INHERITED = (
    *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR"),
    "ORT_DISABLE_TELEMETRY",  # which `import zoo` sets
)


def child_environment() -> dict[str, str]:
    """Return the variables of a process that handles untrusted files: the usual ones alone, as others may be secrets.

    Python finds its modules where this process does.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return inherited | {"PYTHONPATH": os.pathsep.join(sys.path)}


@cache
def cpu_flags() -> frozenset[str] | None:
    """Return the words of /proc/cpuinfo, which hold the processor's instruction sets ("avx2", "avx512_vnni").

    Returns None if the system is not Linux.
    """
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return None


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Limits of this process on Linux, as it sees them."""


def core_count() -> int:
    """Return how many cores this process may use: those of the machine, its affinity and its control group."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cpu_quota())))


def _cpu_quota() -> float:
    """Return the cores that the control group of this process allows (`docker run --cpus 1.5`); infinity without one.

    Sources: `cpu.max` of version 2 and `cpu.cfs_quota_us` of version 1, as a container sees its own group.
    """
    with suppress(OSError, ValueError):
        quota, period = (CONTROL_GROUP / "cpu.max").read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (
            (CONTROL_GROUP / "cpu" / f"cpu.cfs_{name}_us").read_text("ascii") for name in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def thread_count() -> int:
    """Return how many threads a process may use: the cores, or fewer if OMP_NUM_THREADS says so."""
    cores, allowed = core_count(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(allowed)) if allowed.isdecimal() and int(allowed) else cores


_RUNTIMES = {"torch": ("torch", "timm"), "onnx": ("onnxruntime", "onnxruntime-gpu")}


def library_versions(runtime: str | None = None) -> dict[str, str]:
    """Return the versions of this package, NumPy and the libraries of a runtime (torch, onnx), by distribution."""
    names = ("dml-zoo", "numpy", *_RUNTIMES.get(runtime or "", ()))
    return {name: number for name in names if (number := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
