"""One measurement of a model, and the file in its folder that holds them all (`results.json`)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from zoo.errors import ModelFolderError
from zoo.files import locked, read_json, write_json

FILE = "results.json"

_IDENTITY = ("dataset", "split", "protocol", "runtime", "precision")
"""Two measurements of one model that agree in these measure the same thing; the newer one replaces the older."""


@dataclass(frozen=True)
class Evaluation:
    """What was measured, how, and what came out.

    model, fingerprint, runtime, precision: whose embeddings were measured; None where that is not known, and in files
    from before 0.3.0 there is no fingerprint. queries: how many searched, those without relatives included; they are
    left out of the metrics. classes: of the queries that were measured. metrics: means over queries, as fractions, and
    what further groups add; their keys are in the docstring of `zoo.evaluation`. intervals: metric -> (low, high),
    95 %, by resampling classes, of means over queries; empty below two classes.
    date: ISO 8601, UTC. versions: library -> version. unreadable: how many images of a folder could not be read and
    were left out; files from before 0.3.0 do not say.
    """

    model: str | None
    dataset: str | None
    split: str | None
    protocol: str
    runtime: str | None
    precision: str | None
    dim: int
    queries: int
    queries_without_relatives: int
    classes: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    unreadable: int = 0
    fingerprint: str | None = None

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["intervals"] = {name: list(bounds) for name, bounds in self.intervals.items()}
        return values


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The measurements in a model folder, oldest first; none where it has no results.json.

    Raises `ModelFolderError` where the file is not what `add_result` writes.
    """
    path = folder / FILE
    try:
        results = read_json(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path} cannot be read as JSON: {error}. {_ADVICE}") from None
    if not isinstance(results, list):
        raise ModelFolderError(f"{path} must hold a list of measurements. {_ADVICE}")
    for number, result in enumerate(results):
        if not _is_result(result):
            raise ModelFolderError(f"{path}: entry {number} is no measurement. {_ADVICE}")
    return results


def add_result(folder: Path, evaluation: Evaluation) -> None:
    """Add a measurement to the folder's results.json, in place of an earlier one of the same kind.

    Several processes may do so at once. The folder may be any that is writable, one in the Hub's cache or among the
    shipped models included; there the next download or upgrade may drop the measurement.
    """
    new = evaluation.to_json()
    with locked(folder):
        kept = [old for old in read_results(folder) if any(old.get(key) != new[key] for key in _IDENTITY)]
        write_json(folder / FILE, [*kept, new])


_ADVICE = "Delete it and measure again with: zoo evaluate MODEL --save"


def _is_result(value: Any) -> bool:
    """Whether the value names what was measured, in text, and holds metrics and bounds that are numbers."""
    if not isinstance(value, dict) or not all(key in value for key in _IDENTITY):
        return False
    if not isinstance(value["protocol"], str) or not all(isinstance(value[key], str | None) for key in _IDENTITY):
        return False
    metrics, intervals = value.get("metrics"), value.get("intervals", {})
    if not isinstance(metrics, dict) or not isinstance(intervals, dict):
        return False
    pairs = all(isinstance(bounds, list) and len(bounds) == 2 for bounds in intervals.values())
    return pairs and all(map(_is_number, chain(metrics.values(), *intervals.values())))


def _is_number(value: Any) -> bool:
    """Whether it is finite, as a float too: whole numbers of JSON may be longer than any float."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class Check:
    """One line of the outcome. `ok` is None where the check could not be made on this machine.

    cosine: the least to golden embeddings, of a check that compares with them. unsuited: it fails by torch's half
    precision, which does not suit the network, in a folder that is whole.
    """

    name: str
    ok: bool | None
    detail: str
    cosine: float | None = None
    unsuited: bool = False

    @property
    def fails(self) -> bool:
        """Whether the folder is not what its card says. That a network does not suit half precision is told alone."""
        return self.ok is False and not self.unsuited

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fails": self.fails}
