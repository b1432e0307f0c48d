"""Results.json and onnx/parity.json: read, append, validate; tolerances.

The least cosines between an image's embedding by torch and by a variant that may still be called the same model.

What `zoo export` says of a model folder's graphs (`onnx/parity.json`): read, and held against itself.

One measurement of a model, and the file in its folder that holds them all (`results.json`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from zoo.errors import ModelFolderError
from zoo.files import locked, read_json, write_json
from zoo.models.card import Card

EXPORT_FLOORS = {"fp32": 0.99999, "fp16": 0.9999, "int8": 0.95}
"""Of a graph that `zoo export` has just made, to torch's embedding on the same machine.

fp32: the same arithmetic in another order; 0.99999 is an angle of 0.26 degrees, far above rounding.
fp16: each result is rounded to 11 bits, 0.05 %; fifty layers of that add up to about 0.4 %, a cosine of 0.99999, and
deep or badly scaled networks get ten times that squared loss: 0.9999.
int8: 256 steps over a range that few values fill: some 0.7 % a layer, 5 % after fifty, 0.999; images with values past
the calibrated range fare worse, hence 0.95. Its cost in retrieval is measured beside it.
"""

RESIZE_FLOOR = 0.99
"""Of a graph that resizes to the same graph behind Pillow: a step of 1 in 255 is 0.4 %, and int8 may make some 2 % of
it."""

GOLDEN_FLOORS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.95, "int8": 0.95}
"""Of what a variant gives now to the golden embedding that the model folder holds (`zoo verify`, /readyz).

That one is of another machine and other versions of the libraries, and images were decoded and resized there: ten times
the squared loss of `EXPORT_FLOORS` is granted. int8's floor leaves room for this already. bf16 rounds eight times as
coarsely as fp16, which makes 64 times its squared loss: 0.99936 where fp16 gives 0.99999, and ten times that in badly
scaled networks.
"""

GOLDEN_RESIZE_FLOORS = {"fp32": 0.99, "fp16": 0.99, "int8": 0.9}
"""Of what a graph that resizes gives now to the golden embedding. The angles of `RESIZE_FLOOR` (8 degrees) and of
`GOLDEN_FLOORS` add up at worst, which is little but for int8: 8 and 18 degrees are a cosine of 0.9.
"""


PARITY_FILE = "onnx/parity.json"

COST_TARGET = 0.002
"""The most that R@1 and MAP@R may fall by a precision: 0.2 points."""

COST_METRICS = ("recall_at_1", "map_at_r")

ROUNDING = 1e-6
"""Of a difference of two numbers that the file holds."""


def read_parity(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries by variant; none where there is no such file. Raises `ModelFolderError` for one that is damaged."""
    path = folder / PARITY_FILE
    try:
        entries = read_json(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise parity_error(folder, str(error)) from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise parity_error(folder, "expected an object of objects")
    return entries


def entry_mismatch(entry: Mapping[str, Any], variant: str, card: Card, graphs: Collection[str]) -> str:
    """Why an entry is of no graph of this model; "" where it may be. Older exports did not write whose it is.

    graphs: the variants that are there.
    """
    if entry.get("variant", variant) != variant:
        return f"holds what is said of {entry['variant']}"
    if "fingerprint" in entry:
        return "" if entry["fingerprint"] == card.fingerprint else "is said of another model's graph"
    return "" if variant in graphs else "is said of a graph that is not here"


def cost_verdict(interval: Sequence[float]) -> str:
    """Whether a change in this interval is shown to be a loss of at most `COST_TARGET` ("met"), shown to be a greater
    one ("missed"), or neither ("undecided")."""
    low, high = interval
    if low >= -COST_TARGET:
        return "met"
    return "missed" if high < -COST_TARGET else "undecided"


def parity_error(folder: Path, why: str) -> ModelFolderError:
    """The error for a file that holds something else."""
    return ModelFolderError(
        f"{folder / PARITY_FILE} is not what zoo export writes: {why}. Export the model anew, or get its folder anew."
    )


def contradictions(entry: Mapping[str, Any], precision: str) -> list[str]:
    """What of a precision's entry its own numbers do not bear out, in words.

    Raises `KeyError`, `TypeError` or `ValueError` for an entry of another shape.
    """
    found = []
    if entry.get("holds") is True and not float(entry["min_cosine"]) >= EXPORT_FLOORS[precision]:
        found.append(f"it says that {float(entry['min_cosine']):.6f} holds, the floor is {EXPORT_FLOORS[precision]}")
    for metric in COST_METRICS:
        if row := (entry.get("cost") or {}).get(metric):
            found += [f"{metric}: {why}" for why in _of_cost(row, precision)]
    return found


def _of_cost(row: Mapping[str, Any], precision: str) -> Iterator[str]:
    change = float(row["difference"])
    if not abs(float(row[precision]) - float(row["fp32"]) - change) <= ROUNDING:
        yield f"{change:+.4f} is not the difference of {float(row[precision]):.4f} and {float(row['fp32']):.4f}"
    yield from _of_interval(row, change)
    if over_queries := row.get("over_queries"):
        yield from (f"over queries: {why}" for why in _of_interval(over_queries, change))


def _of_interval(said: Mapping[str, Any], change: float) -> Iterator[str]:
    low, high = map(float, said["interval"])
    if not low - ROUNDING <= change <= high + ROUNDING:
        yield f"{change:+.4f} lies outside its interval of {low:+.4f} to {high:+.4f}"
    if said["within_target"] is not (low >= -COST_TARGET):
        yield f"within_target is {said['within_target']}, and the interval begins at {low:+.4f}"


RESULTS_FILE = "results.json"

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
    path = folder / RESULTS_FILE
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
        write_json(folder / RESULTS_FILE, [*kept, new])


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
