"""A model's scores measured again and held against what its results.json says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zoo.datasets import load as load_dataset
from zoo.datasets.dataset import Dataset
from zoo.errors import DatasetError, MissingDependencyError, ZooError
from zoo.evaluation.evaluate import evaluate
from zoo.loading import load
from zoo.results import Evaluation, read_results
from zoo.verify import Check

TOLERANCE = 0.002
"""How far a score without an interval may be off: rounding on another processor turns a query or two."""


def remeasure(
    folder: Path, data: str | Path | None = None, progress: bool = False, device: str | None = None
) -> Iterator[Check]:
    """A check for each measurement in the folder: every score that has an interval lies within it again.

    data: where the data sets lie (default: `ZOO_DATA`, else the download cache); one that is not at hand leaves its
    check open. device: of the scores by torch, as `zoo.load` takes it. Raises `ModelFolderError` where results.json
    cannot be read.
    """

    @cache
    def dataset(name: str, split: str) -> Dataset:
        return load_dataset(name, split, data)

    for result in read_results(folder):
        about = [str(result[key]) for key in ("dataset", "split", "runtime", "precision")]
        name = f"scores {' '.join(about)}"
        if "None" in about:
            yield Check(name, None, "of plain embeddings, not of a model on a data set")
            continue
        try:
            known = dataset(about[0], about[1])
            model = load(folder, about[2], about[3], device if about[2] == "torch" else None)
            again = evaluate(model, known, k=_ks(result), progress=progress)
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        else:
            yield _compared(name, result, again)


def _ks(result: Mapping[str, Any]) -> tuple[int, ...]:
    found = (re.fullmatch(r"recall_at_(\d+)", metric) for metric in result["metrics"])
    return tuple(sorted(int(match[1]) for match in found if match)) or (1,)


def _compared(name: str, result: Mapping[str, Any], again: Evaluation) -> Check:
    """Only what is measured again without further groups of metrics is compared."""
    if "queries" in result and again.queries != result["queries"]:
        same = f"{again.queries} queries, the card's scores are of {result['queries']}"
        # A folder of images is a data set of whatever name.
        return Check(name, None if again.dataset == "folder" else False, f"{same}: other images")
    bounds = {metric: _bounds(metric, result) for metric in result["metrics"] if metric in again.metrics}
    outside = [
        f"{metric} {again.metrics[metric]:.4f}, not {low:.4f} to {high:.4f}"
        for metric, (low, high) in bounds.items()
        if not low <= again.metrics[metric] <= high
    ]
    if outside or not bounds:
        return Check(name, False, "; ".join(outside) or "holds no score that can be measured again")
    first = next(iter(bounds))
    low, high = bounds[first]
    return Check(name, True, f"{first} {again.metrics[first]:.4f} within {low:.4f} to {high:.4f}, {len(bounds)} scores")


def _bounds(metric: str, result: Mapping[str, Any]) -> tuple[float, float]:
    value = result["metrics"][metric]
    low, high = result.get("intervals", {}).get(metric, (value, value))
    return min(low, value - TOLERANCE), max(high, value + TOLERANCE)
