"""The bounds in pyproject.toml: constraints.txt satisfies them, and they exclude versions with published faults."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]

FIXED = {
    "bentoml": ("1.4.39", "CVE-2026-44345, CVE-2026-44346: a bentofile runs commands"),
    "filelock": ("3.20.3", "CVE-2025-68146, CVE-2026-22701: symbolic links in the place of locks"),
    "jinja2": ("3.1.6", "CVE-2025-27516: escape from the sandbox"),
    "onnx": ("1.21.0", "CVE-2026-27489: external data behind links; CVE-2026-34445: attributes overwritten"),
    "pillow": ("12.3.0", "CVE-2026-59199: writes outside the memory of an image"),
    "pyarrow": ("23.0.1", "CVE-2026-25087: use after free in IPC files"),
    "python-multipart": ("0.0.27", "CVE-2026-42561: headers of parts without a limit"),
    "ray": ("2.56.0", "CVE-2026-57516: pickles in archives"),
    "starlette": ("1.0.1", "CVE-2026-48710: a path in the Host header; CVE-2025-62727: ranges in quadratic time"),
    "torch": ("2.10.0", "CVE-2026-24747: memory corruption by checkpoints that are read with weights_only"),
    "tqdm": ("4.66.3", "CVE-2024-34062: code in arguments"),
}
"""The first version without the published faults known to us, by package."""


FOR_DEVELOPERS = {"dev", "docs", "peers"}
"""Extras that CONTRIBUTING.md is about."""


def read_project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def requirements() -> list[Requirement]:
    project = read_project()
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [made for made in map(Requirement, texts) if made.name != project["name"]]


def locked() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(";")[0].split("==") for line in lines if "==" in line)
    return {canonicalize_name(name.strip()): Version(version.strip()) for name, version in pairs}


def test_every_bound_admits_the_locked_version() -> None:
    versions = locked()
    wrong = [
        str(made)
        for made in requirements()
        if (version := versions.get(canonicalize_name(made.name))) is not None and version not in made.specifier
    ]
    assert wrong == []


def test_no_bound_admits_a_version_with_a_published_fault() -> None:
    for name, (fixed, fault) in FIXED.items():
        bounds = [made.specifier for made in requirements() if canonicalize_name(made.name) == name]
        assert bounds, f"{name} is not bounded"
        for bound in bounds:
            lowest = min(Version(entry.version) for entry in bound if entry.operator in (">=", "=="))
            assert lowest >= Version(fixed), fault


def test_the_guide_lists_every_extra() -> None:
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    named = {name for line in table.splitlines()[2:] for name in re.findall("`([a-z-]+)`", line.split("|")[1])}
    assert named == read_project()["optional-dependencies"].keys() - FOR_DEVELOPERS
