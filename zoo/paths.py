"""Where things lie on this machine: `ZOO_HOME` (trained models, caches) and `ZOO_DATA` (data sets)."""

from __future__ import annotations

import os
from pathlib import Path

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
