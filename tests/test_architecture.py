"""Architecture: import circles, sizes of files, libraries that must not be loaded. `make check` checks the layers."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

from tests.children import run_python

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
NOT_YET = ("serving",)
"""Packages whose files have not been arranged by subject."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the project's modules that a file imports, also inside functions and for annotations alone.

    In packages of `NOT_YET` imports for annotations alone do not count.
    """
    tree = tree_of(path)
    exempt = path.relative_to(ROOT).parts[0] in NOT_YET
    annotations = {id(n) for block in ast.walk(tree) if exempt and is_for_types_only(block) for n in ast.walk(block)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names.update(name if name in MODULES else str(node.module) for name in full)
    return frozenset(names & MODULES.keys())


def test_nothing_in_zoo_imports_its_front_door() -> None:
    assert [name for name, path in MODULES.items() if name.startswith("zoo.") and "zoo" in imports(path)] == []


def test_there_is_no_import_circle() -> None:
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(imports(MODULES[name]) - {name}):
                visit(target, [*trail, name])
            done.add(name)

    for name in MODULES:
        visit(name, [])


WITHOUT_TORCH = """
import importlib, sys

def load(names, absent):
    for name in names.split():
        importlib.import_module(name)
        check(name, absent)

def check(when, absent):
    assert not set(absent.split()) & set(sys.modules), (when, set(absent.split()) & set(sys.modules))

load("zoo", "numpy PIL huggingface_hub")
from zoo.cli import main as cli
assert cli.main(["--help"]) == 0
check("zoo --help", "torch timm rich " + " ".join(entry.module for entry in cli.COMMANDS))
load("zoo.render zoo.report.html", "jinja2")
import zoo.data
sets = {"official", "photographs", "retrieval_sets", "download", *zoo.data.DATASETS} - {"folder"}
check("the table of data sets", " ".join(f"zoo.data.{name}" for name in sets))
heavy = "torch torchvision timm sklearn matplotlib optuna"
load("zoo.cli.benchmark", heavy)
assert cli.main(["benchmark", "list"]) == cli.main(["benchmark", "compare", "diva-3"]) == 0
check("the list and the comparison", heavy + " scipy")
load("zoo.cli.models zoo.cli.evaluate zoo.cli.studies training.studies.papers zoo.evaluation.remeasure", heavy)
load("zoo.models.onnx_runtime zoo.models.verify zoo.models.golden zoo.data.glyphs zoo.data.omniglot", heavy)
load("zoo.data.folder serving.gallery serving.service serving.app serving.client", heavy)
load("zoo.cli.gallery zoo.cli.gallery_upkeep zoo.cli.index zoo.cli.serve zoo.cli.train zoo.cli.export", heavy)
load("training.cached.feature_file training.studies.compare_page zoo.report.model zoo.hub.download", heavy)
load("zoo.hub.model_page", heavy)
import numpy, zoo
assert len(zoo.list_models()) > 100 and zoo.info("dinov2-s14")
assert cli.main(["evaluate", "margin-conv4-glyphs", "--data", "."]) == 2
model = zoo.load("margin-conv4-glyphs", runtime="onnx")
rows = model.embed([numpy.zeros((40, 40, 3), numpy.uint8), numpy.full((50, 30), 200, numpy.uint8)])
assert rows.shape == (2, model.dim), rows.shape
check("embedding", heavy)
sys.modules["torch"] = None
try:
    zoo.load("dinov2-s14")
except zoo.errors.MissingDependencyError as error:
    assert "dml-zoo[train]" in str(error), error
else:
    raise AssertionError("torch is missing")
"""
"""Imports and commands of one process, in this order."""


def test_without_torch() -> None:
    run_python(WITHOUT_TORCH)


CATALOGUES = ("backbones", "losses", "miners", "samplers", "methods", "recipes", "papers")


def test_a_file_is_one_subject() -> None:
    for name, path in MODULES.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 700, name
        assert path.stem not in {"utils", "util", "helpers", "misc"}, name


def test_a_folder_has_at_most_twenty_files() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in MODULES.values())
    wide = {str(folder): files for folder, files in folders.items() if files > 20 and folder.name not in CATALOGUES}
    assert {folder for folder in wide if not folder.startswith(NOT_YET)} == set()


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if not name.startswith(NOT_YET):
            for node in tree_of(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
