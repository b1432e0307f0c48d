"""By what a model that another one was made of is written down, so that it is found again, here and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zoo import paths
from zoo.baselines import root as baselines_root
from zoo.hub.models import pinned
from zoo.registry import here


def reference(folder: Path) -> str:
    """The name by which a model folder is found, of one in the Hub's cache with its commit; else its full path.

    A path says where a person keeps things, and nothing on another machine.
    """
    return next((name for name in _names(folder) if _is_found(name, folder)), str(folder.resolve()))


def _names(folder: Path) -> Iterator[str]:
    if folder.parent in (paths.local_models(), paths.SHIPPED, baselines_root()):
        yield folder.name
    if (name := pinned(folder)) is not None:
        yield name


def _is_found(name: str, folder: Path) -> bool:
    """Whether it means this folder, and not another one of its name that comes first."""
    found = here(name)
    return found is not None and found.resolve() == folder.resolve()
