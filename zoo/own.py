"""Imports of this distribution's packages from their own place, beside packages of a user with the same names.

`training`, `exports` and `serving` are names that a user's packages may have, too. The front door imports ours by
`own_module` and through the finder below. If another package has such a name in this process, or comes first on
`sys.path`, ours is the module `zoo.own.training`, and the `import` statements of our files mean that module. The
user's files keep the plain name, whichever is imported first.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("training", "exports", "serving")
ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds our packages and `zoo`."""

__path__ = [str(ROOT)]
"""The folders of the submodules: `zoo.own.training` is our folder `training`."""

FRONT = (f"{__name__}.", "zoo.cli.")
"""Modules whose imports of our packages are redirected."""


def own_module(name: str) -> ModuleType:
    """Import a module of ours by its plain name, as "training.api", and return it."""
    return import_module(_own_name(name))


def members(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public module that has the public classes of a package of ours."""

    def get(name: str) -> Any:
        if name not in ("__all__", *own_module(package).__all__):
            advice = "" if name.startswith("_") else "; zoo.train also takes classes of pytorch-metric-learning"
            raise AttributeError(f"module 'zoo.{package.rpartition('.')[2]}' has no attribute {name!r}{advice}")
        return getattr(own_module(package), name)

    return get, lambda: sorted(own_module(package).__all__)


def _own_name(name: str) -> str:
    package = name.partition(".")[0]
    return f"{__name__}.{name}" if package in PACKAGES and _is_taken(package) else name


@cache
def _is_taken(package: str) -> bool:
    """Return whether the name means another package in this process; else make it ours from now on."""
    spec = getattr(sys.modules.get(package), "__spec__", None) or find_spec(package)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != ROOT / package / "__init__.py":
        return True
    import_module(package)
    return False


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002  # names of the built-in function
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as `builtins.__import__` does, our packages from their own place."""
    own = _own_name(name) if level == 0 else name
    if own == name or fromlist:
        return builtins.__import__(own, globals, locals, fromlist or (), level)
    import_module(own)
    return sys.modules[_own_name(name.partition(".")[0])]


class _OwnLoader(SourceFileLoader):
    """Loader of a module whose `import` statements call `_import`."""

    def exec_module(self, module: ModuleType) -> None:
        # The documented way to choose the built-in functions of a namespace, see `exec`.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _OwnFinder:
    """Finder of the modules in `FRONT`; and of packages before ours on the path, which Python may not look at."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in PACKAGES:
            return _spec_before_ours(fullname)
        if not fullname.startswith(FRONT):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _OwnLoader(fullname, spec.loader.path)
        return spec


def _spec_before_ours(package: str) -> ModuleSpec | None:
    """Return the package that comes before ours on the path.

    Python prefers ours, because it has an `__init__.py`, to a folder without one that comes first.
    """
    places = [Path(entry).resolve() for entry in sys.path]
    before = sys.path[: places.index(ROOT)] if ROOT in places else sys.path
    spec = PathFinder.find_spec(package, before)
    if spec is None or spec.origin is not None:
        return spec
    folders = map(Path, spec.submodule_search_locations or ())
    return spec if any(file for folder in folders for file in folder.glob("*.py")) else None


def install() -> None:
    """Install the finder, once in a process."""
    if not any(isinstance(finder, _OwnFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnFinder())
