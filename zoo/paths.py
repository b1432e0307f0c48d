"""Where things lie on this machine: `ZOO_HOME` (trained models, caches) and `ZOO_DATA` (data sets)."""

from __future__ import annotations

import os
from pathlib import Path

SHIPPED = Path(__file__).parent / "checkpoints"
"""The model folders that come with the package."""


def home() -> Path:
    """The local zoo's folder: `ZOO_HOME`, else `~/.dml-zoo`."""
    return Path(os.environ.get("ZOO_HOME") or Path.home() / ".dml-zoo").expanduser()


def local_models() -> Path:
    """Where `zoo train` writes model folders and `zoo.load` looks for them by name."""
    return home() / "models"


def download_cache() -> Path:
    """Where downloaded data sets are kept."""
    return home() / "data"


def data_roots(given: str | Path | None = None) -> list[Path]:
    """The folders to look for a data set in, in order: the one given, `ZOO_DATA`, the download cache."""
    roots = [given, os.environ.get("ZOO_DATA"), download_cache()]
    return [Path(root).expanduser() for root in roots if root]
