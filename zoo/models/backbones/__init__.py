"""Backbones that timm lacks, registered with timm as soon as both packages are imported, in either order.

Cards and recipes therefore name them like any timm architecture, and after `import zoo`, which does not load torch,
`timm.create_model("hf-hub:org/name", pretrained=True)` builds them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def register() -> None:
    """Register the project's architectures with `timm.create_model`. Imports torch and timm."""
    from zoo.models.backbones import bn_inception, conv4, custom, gem, googlenet, prompted  # noqa: F401  (importing registers)


def register_with_timm() -> None:
    """Register now if timm is already imported, else right after its import."""
    if sys.modules.get("timm") is not None:
        register()
    elif not any(isinstance(finder, _AfterTimm) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm:
    """Finder for timm, until it is imported: its ordinary loader, followed by the registration."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "timm":
            return None
        # The caller may only check that timm is installed, and import it later or never: wrap the loader, do not load.
        finders = [finder for finder in sys.meta_path if finder is not self]
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
