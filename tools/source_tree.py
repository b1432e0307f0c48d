"""The tree of source files in docs/architecture.md: python -m tools.source_tree

One line per file: its name and the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from zoo.files import write_bytes
from zoo.render import replace_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("zoo", "training", "exports", "serving")
CATALOGUES = ("losses", "miners", "samplers")
"""Folders whose files are all alike: the tree names them in one line."""


def summary(path: Path) -> str:
    """Return the first sentence of a file's docstring on one line, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<!\bal)\. ", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")


def tree() -> str:
    """Return the source files of the project, one line per file, as a block of Markdown."""
    lines: list[str] = []
    for package in PACKAGES:
        folders = sorted({path.parent for path in (ROOT / package).rglob("*.py")})
        for folder in folders:
            lines += _folder(folder)
    return "\n".join(["```text", *lines, "```"])


def _folder(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.py"))
    init = folder / "__init__.py"
    lines = [f"{folder.relative_to(ROOT)}/".ljust(30) + (summary(init) if init in files else "")]
    others = [path for path in files if path != init]
    if folder.name in CATALOGUES:
        return [*lines, f"    one file each: {', '.join(path.stem for path in others)}"]
    return [*lines, *(f"    {path.name}".ljust(30) + summary(path) for path in others)]


def main() -> None:
    write_bytes(PAGE, replace_parts(PAGE.read_text(encoding="utf-8"), {"tree": tree()}).encode())


if __name__ == "__main__":
    main()
