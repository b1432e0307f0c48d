"""What `zoo export` says of a model folder's graphs (`onnx/parity.json`): read, and held against itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.cards import Card
from zoo.errors import ModelFolderError
from zoo.files import read_json
from zoo.floors import EXPORT_FLOORS

FILE = "onnx/parity.json"

COST_TARGET = 0.002
"""The most that R@1 and MAP@R may fall by a precision: 0.2 points."""

COST_METRICS = ("recall_at_1", "map_at_r")

ROUNDING = 1e-6
"""Of a difference of two numbers that the file holds."""


def read_parity(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries by variant; none where there is no such file. Raises `ModelFolderError` for one that is damaged."""
    path = folder / FILE
    try:
        entries = read_json(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise not_ours(folder, str(error)) from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise not_ours(folder, "expected an object of objects")
    return entries


def misplaced(entry: Mapping[str, Any], variant: str, card: Card, graphs: Collection[str]) -> str:
    """Why an entry is of no graph of this model; "" where it may be. Older exports did not write whose it is.

    graphs: the variants that are there.
    """
    if entry.get("variant", variant) != variant:
        return f"holds what is said of {entry['variant']}"
    if "fingerprint" in entry:
        return "" if entry["fingerprint"] == card.fingerprint else "is said of another model's graph"
    return "" if variant in graphs else "is said of a graph that is not here"


def verdict(interval: Sequence[float]) -> str:
    """Whether a change in this interval is shown to be a loss of at most `COST_TARGET` ("met"), shown to be a greater
    one ("missed"), or neither ("undecided")."""
    low, high = interval
    if low >= -COST_TARGET:
        return "met"
    return "missed" if high < -COST_TARGET else "undecided"


def not_ours(folder: Path, why: str) -> ModelFolderError:
    """The error for a file that holds something else."""
    return ModelFolderError(
        f"{folder / FILE} is not what zoo export writes: {why}. Export the model anew, or get its folder anew."
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
