"""Figures of a benchmark and their targets: a table for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from zoo.console import print_table
from zoo.files import write_json
from zoo.render import Table

LIBRARIES = ("dml-zoo", "numpy", "onnxruntime", "onnxruntime-gpu", "pillow", "timm", "torch")

MARKS = {None: "", True: "reached", False: "NOT reached"}


@dataclass(frozen=True)
class Figure:
    """Result with its target: a lower bound, or with `at_most` an upper bound; None without a target."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    def cells(self) -> list[str]:
        target = "" if self.target is None else f"at {'most' if self.at_most else 'least'} {self.target:g}"
        return [self.what, f"{self.value:.2f}", self.unit, target, MARKS[self.reached]]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "reached": self.reached}


def print_figures(figures: Sequence[Figure]) -> None:
    columns = ("what", "found", "unit", "target", "outcome")
    print_table(Table(columns, [figure.cells() for figure in figures], numbers=("found",)))


def write_figures(path: Path | None, figures: Sequence[Figure]) -> None:
    """Write the figures and their conditions to a file; nothing without a path."""
    if path is not None:
        write_json(path, {**conditions(), "figures": [figure.to_json() for figure in figures]})


def clock() -> Callable[[], float]:
    """Return the clock of a benchmark: processor time on one core, which others may share, else real time."""
    return time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter


def print_conditions() -> None:
    facts = conditions()
    versions = ", ".join(f"{name} {number}" for name, number in facts.pop("versions").items())
    print("\n".join(f"{name}: {fact}" for name, fact in {**facts, "versions": versions}.items() if fact is not None))


def conditions() -> dict[str, Any]:
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "clock": clock().__name__,
        "load": [round(load, 1) for load in os.getloadavg()],
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
