"""Architecture: import circles, names, sizes, libraries that must not be loaded. `make check` checks the layers."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the project's modules that a file imports, also inside functions and for annotations alone."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names.update(name if name in MODULES else str(node.module) for name in full)
    return frozenset(names & MODULES.keys())


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
load("zoo.cli.gallery zoo.cli.gallery_upkeep zoo.cli.index zoo.cli.serve zoo.cli.train zoo.cli.finetune", heavy)
load("training.cached.feature_folder training.studies.compare_page zoo.report.model zoo.hub.download", heavy)
load("zoo.hub.model_page zoo.cli.export", heavy)
import numpy, zoo
assert len(zoo.list_recipes()) > 100 and zoo.info("dinov2-s14") and dir(zoo.losses)
assert all(getattr(zoo, name) for name in {*zoo.__all__} - {"study", "Studied"})
assert cli.main(["evaluate", "margin-conv4-glyphs", "--data", "."]) == 2
model = zoo.load("margin-conv4-glyphs", runtime="onnx")
rows = model.embed([numpy.zeros((40, 40, 3), numpy.uint8), numpy.full((50, 30), 200, numpy.uint8)])
assert rows.shape == (2, model.dim), rows.shape
check("embedding", heavy)
sys.modules["torch"] = None
assert zoo.load("photos").runtime == "onnx"
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


VAGUE_NAMES = {"utils", "util", "helpers", "misc"}


def test_a_file_is_named_after_its_subject() -> None:
    assert {name for name, path in MODULES.items() if path.stem in VAGUE_NAMES} == set()


def test_the_largest_files_and_folders_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Print sizes as a thermometer, not a limit: what is far above the others may have two subjects."""
    lines = Counter({name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()})
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in MODULES.values())
    with capsys.disabled():
        print("\nlines:", *(f"{name} {size}" for name, size in lines.most_common(5)), sep="  ")
        print("files:", *(f"{folder} {files}" for folder, files in folders.most_common(5)), sep="  ")


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("name", ["losses", "miners", "samplers"])
def test_type_checkers_see_every_class_of_a_public_module(name: str) -> None:
    """zoo/losses.py and its like name the classes for type checkers; at run time they are those of the tables."""
    imports = [
        node for node in ast.walk(ast.parse((ROOT / f"zoo/{name}.py").read_text())) if isinstance(node, ast.ImportFrom)
    ]
    named = {alias.asname for node in imports for alias in node.names if (node.module or "").startswith("training.")}
    assert named == set(dir(import_module(f"zoo.{name}")))
