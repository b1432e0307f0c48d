"""ZOO_HOME, ZOO_DATA; machine facts (cores, CPU flags, library versions).

Where things lie on this machine: `ZOO_HOME` (trained models, caches) and `ZOO_DATA` (data sets).

Paths of this machine in what others are to read: of each no more than its last part is told.

A path names its owner's account, folders and work, and is nothing on any other machine.

The processor of this machine: its instruction sets and cores.

The versions of the libraries that computed something.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

SHIPPED = Path(__file__).parent / "checkpoints"
"""The model folders that come with the package."""


def home() -> Path:
    """The local zoo's folder: `ZOO_HOME`, else `~/.dml-zoo`."""
    return expand(os.environ.get("ZOO_HOME") or "~/.dml-zoo")


def local_models() -> Path:
    """Where `zoo train` writes model folders and `zoo.load` looks for them by name."""
    return home() / "models"


def download_cache() -> Path:
    """Where downloaded data sets are kept."""
    return home() / "data"


def data_roots(given: str | Path | None = None) -> list[Path]:
    """The folders to look for a data set in: the one given and no other; else `ZOO_DATA`, then the download cache."""
    if given is not None:
        return [expand(given)]
    named = os.environ.get("ZOO_DATA")
    return [expand(named), download_cache()] if named else [download_cache()]


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there; False also for names that the file system cannot take."""
    try:
        return expand(path).is_dir()
    except OSError:
        return False


def expand(path: str | os.PathLike[str]) -> Path:
    """The path with `~` and `~user` replaced by the home folder; left as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


LABEL_KEYS = ("train_classes", "test_classes", "seen_by_base", "seen_by_teacher")
"""Keys of lists of labels, which may look like paths (/m/01g317 is a class of Open Images) and are none."""

_WHOLE = re.compile(r"(file:/*|~[\w.-]*|\.{1,2})?/")
_WITHIN = re.compile(r"(?<![\w.~/])(?!(?<=:)//)(~[\w.-]*)?/[^\s,;:'\"()]+")
_FILE = re.compile(r"file:/+[^\s,;'\"()]*")
"""How a path begins that stands alone, and a full one in a sentence: neither `org/name` nor an address of the web."""


def without_paths(value: Any) -> Any:
    """The JSON value with every full path in its texts cut to the last part, whether it is there or not."""
    if isinstance(value, dict):
        return {key: inner if key in LABEL_KEYS else without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    if _WHOLE.match(text):  # to its end, as names of folders may hold spaces
        return PurePosixPath(text).name
    return _WITHIN.sub(_last, _FILE.sub(_last, text))


def _last(found: re.Match[str]) -> str:
    return PurePosixPath(found.group()).name


@cache
def cpu_flags() -> frozenset[str] | None:
    """The names of its instruction sets, as Linux has them: "avx2", "avx512_vnni"; None where nobody says."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:  # no Linux
        return None


def thread_count() -> int:
    """Return how many threads a process may use: the cores, or fewer where OMP_NUM_THREADS says so."""
    cores, allowed = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(allowed)) if allowed.isdecimal() and int(allowed) else cores


_RUNTIMES = {"torch": ("torch", "timm"), "onnx": ("onnxruntime", "onnxruntime-gpu")}


def library_versions(runtime: str | None = None) -> dict[str, str]:
    """This package's and NumPy's, and those of what a model runs on, torch or onnx: distribution -> version."""
    names = ("dml-zoo", "numpy", *_RUNTIMES.get(runtime or "", ()))
    return {name: found for name in names if (found := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
