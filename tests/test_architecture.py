"""The shape of the house: who may import whom, and what the serving path must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("zoo", "training", "exports", "serving")


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imports(path: Path, top_level: bool) -> tuple[str, ...]:
    """Return the full names of what a file imports, `from a import b` as a.b where that is a module."""
    return tuple(imported(path, top_level))


def imported(path: Path, top_level: bool) -> Iterator[str]:
    """Yield them as they stand in the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if top_level and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)


@pytest.mark.parametrize("package", ["training", "exports", "serving"])
def test_training_exports_and_serving_never_import_one_another(package: str) -> None:
    others = {"training", "exports", "serving"} - {package}
    for name, path in MODULES.items():
        if name.split(".")[0] == package:
            assert not others & {target.split(".")[0] for target in imports(path, top_level=False)}, name


def test_zoo_imports_none_of_the_others_and_not_its_own_front_door() -> None:
    for name, path in MODULES.items():
        if name.split(".")[0] == "zoo" and name != "zoo":
            targets = set(imports(path, top_level=False))
            if not name.startswith("zoo.cli"):  # the command line, above all packages
                assert not {"training", "exports", "serving"} & {target.split(".")[0] for target in targets}, name
            assert "zoo" not in targets, f"{name} imports from zoo/__init__"


def test_nothing_imports_the_command_line() -> None:
    for name, path in MODULES.items():
        if not name.startswith("zoo.cli"):
            assert not [target for target in imports(path, top_level=False) if target.startswith("zoo.cli")], name


def test_there_is_no_import_circle() -> None:
    graph = {name: {t for t in imports(path, top_level=True) if t in MODULES} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def in_fresh_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WITHOUT_TORCH = (
    "zoo",
    "zoo.cli.main, zoo.cli.models, zoo.cli.evaluate",
    "zoo.models.onnx_runtime, zoo.models.verify, zoo.models.golden, zoo.data.glyphs, zoo.data.omniglot",
    "zoo.data.folder",
    "serving.gallery, serving.service, serving.app, serving.client",
    "zoo.cli.gallery, zoo.cli.gallery_upkeep, zoo.cli.index, zoo.cli.serve",
    "zoo.cli.train, zoo.cli.studies, zoo.cli.export, training.feature_file",
    "training.distill",
    "zoo.cli.benchmark, training.studies.compare_page, zoo.report.model, zoo.report.metrics_demo",
    "zoo.hub.download.model_page",
)
"""All are imported by one process, in this order."""


def test_without_torch() -> None:
    code = """
import importlib, sys
for line in sys.argv[1:]:
    for name in line.split(", "):
        importlib.import_module(name)
        loaded = {"torch", "torchvision", "timm", "sklearn", "matplotlib"} & set(sys.modules)
        assert not loaded, (name, loaded)
"""
    in_fresh_process(code, *WITHOUT_TORCH)


def test_embedding_with_onnx_loads_no_torch() -> None:
    code = """
import sys, numpy, zoo
model = zoo.load("margin-conv4-glyphs", runtime="onnx")
rows = model.embed([numpy.zeros((40, 40, 3), numpy.uint8), numpy.full((50, 30), 200, numpy.uint8)])
assert rows.shape == (2, model.dim), rows.shape
print("torch" in sys.modules, "timm" in sys.modules)
"""
    assert in_fresh_process(code) == "False False"


def test_files_stay_small_and_are_named_for_one_idea() -> None:
    for name, path in MODULES.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 700, name
        assert path.stem not in {"utils", "util", "common", "helpers", "misc"}, name
