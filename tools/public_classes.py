"""The imports by which type checkers see the classes of zoo.losses, zoo.miners and zoo.samplers.

`python -m tools.public_classes` writes them, from the tables of the packages.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from zoo.files import write_bytes

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("losses", "miners", "samplers")


def text_of(module: str) -> str:
    """Return the text of a public module with the imports of all classes that its package has."""
    package = import_module(f"training.{module}")
    places = ((getattr(package, name).__module__, name) for name in package.__all__)
    classes = sorted(places, key=lambda place: (place[0], place[1].lower()))
    imports = "".join(f"    from {place} import {name} as {name}\n" for place, name in classes)
    text = (ROOT / "zoo" / f"{module}.py").read_text(encoding="utf-8")
    return re.sub(r"(?m)^if TYPE_CHECKING:\n(?: {4}.*\n)+", f"if TYPE_CHECKING:\n{imports}", text)


def main() -> None:
    for module in MODULES:
        write_bytes(ROOT / "zoo" / f"{module}.py", text_of(module).encode())


if __name__ == "__main__":
    main()
