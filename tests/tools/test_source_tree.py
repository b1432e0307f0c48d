"""docs/architecture.md names the files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools.source_tree import PAGE, ROOT, tree

TEXT = PAGE.read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT)))
FILES = sorted(set(re.findall(r"`((?:zoo|training|exports|serving)/[\w/]+\.py)[:`]", TEXT)))


def defined(path: Path) -> set[str]:
    """Return the functions and classes of a file, methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_the_tree_is_that_of_the_files() -> None:
    """`python -m tools.source_tree` renews it."""
    assert tree() in TEXT


def test_the_functions_of_the_walks_exist() -> None:
    assert [(file, name) for file, name in NAMES if name not in defined(ROOT / file)] == []


def test_the_files_of_the_walks_exist() -> None:
    assert len(NAMES) > 15
    assert [file for file in FILES if not (ROOT / file).is_file()] == []
