"""Scores and precision costs measured again, and compared with a model folder (`zoo verify --data`).

`remeasure` checks results.json, `remeasure_costs` checks onnx/parity.json. `precision_cost` measures the cost of a
precision in retrieval: the same queries with fp32 and with the variant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data import folder_for
from zoo.data.dataset import FOLDER, WHOLE, Dataset, without
from zoo.errors import DatasetError, ImageError, MissingDependencyError, ModelFolderError, ZooError
from zoo.evaluation.evaluate import embed_dataset, evaluate, protocol_name, search_arguments
from zoo.evaluation.retrieval import PerQuery, per_query
from zoo.evaluation.split import EvaluationSplit, find_held_out, find_split
from zoo.evaluation.statistics import SIGNED, intervals_over_classes
from zoo.models.card import read_card
from zoo.models.load import AUTO, Embedder, load
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import (
    COST_METRICS,
    COST_TARGET,
    Check,
    Evaluation,
    cost_verdict,
    data_title,
    read_parity,
    read_results,
    same_images,
)

TOLERANCE = 0.002
"""The largest accepted difference of a score: rounding on another processor reorders near ties, for one or two queries
in a thousand.

The intervals in the folder are not used: they say how far a score would move with other classes, not on the same
images, and the author of a score writes them too.
"""

ROUNDING = 1e-9
"""Rounding of decimal fractions, so that a difference of exactly the tolerance passes."""


def remeasure(
    folder: Path, data: str | Path | None = None, progress: bool = False, device: str | None = None
) -> Iterator[Check]:
    """Yield a check for each evaluation in results.json: its scores are within `TOLERANCE` of a new measurement.

    Only the means over queries are measured again; scores of further groups of metrics are named as not checked. A
    results.json that cannot be read is a failed check.

    Args:
        folder: The model folder.
        data: The folder of the data sets (default: `ZOO_DATA`, else the download cache). A missing data set leaves its
            check open, and so does a folder of other images than the recorded ones.
        progress: Show a progress bar.
        device: The device for scores by torch, as for `zoo.load`.
    """
    split = cache(partial(_matching_split, find_split, folder, data, "the card's scores"))
    try:
        results = read_results(folder)
    except ModelFolderError as error:
        yield Check("scores", False, f"cannot be measured again: {error}")
        return
    for result in results:
        name_split_runtime = [str(result[key]) for key in ("dataset", "split", "runtime", "precision")]
        name = f"scores {' '.join(name_split_runtime)}"
        if "None" in name_split_runtime:
            yield Check(name, None, "of plain embeddings, not of a model on a data set")
            continue
        dataset, part, runtime, precision = name_split_runtime
        try:
            measured = split(dataset, part)
            model = _load_as_recorded(folder, runtime, precision, device, len(measured.dataset))
            depths = _recall_depths(result)
            evaluation = evaluate(model, measured.dataset, k=depths, progress=progress, unreadable={})
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        else:
            yield _compare_scores(name, result, evaluation)


def _load_as_recorded(folder: Path, runtime: str, precision: str, device: str | None, images: int) -> Embedder:
    """Load the model with the runtime of a recorded score; fp32 by ONNX Runtime may be by a graph of the cache."""
    if runtime == "torch":
        return load(folder, runtime, precision, device)
    if precision == "fp32" and not (folder / GRAPH_FILES[precision]).is_file():
        return load(folder, AUTO, precision, "cpu", images=images)
    return load(folder, runtime, precision)


def remeasure_costs(folder: Path, data: str | Path | None = None, progress: bool = False) -> Iterator[Check]:
    """Yield a check for each graph whose cost onnx/parity.json records.

    The means, their differences and the intervals must be within `TOLERANCE` of a new measurement. An
    onnx/parity.json that cannot be read is a failed check.

    Args:
        folder: The model folder.
        data: The folder of the data sets (default: `ZOO_DATA`, else the download cache). A missing data set leaves its
            check open, and so does a folder of other images.
        progress: Show a progress bar.
    """
    split = cache(partial(_matching_split, find_held_out, folder, data, "the costs"))

    @cache
    def fp32(name: str, part: str) -> tuple[PerQuery, Mapping[str, ImageError]]:
        """Return the scores by fp32 and the errors of the images that were left out."""
        unreadable: dict[str, ImageError] = {}
        model = load(folder, "onnx" if (folder / GRAPH_FILES["fp32"]).is_file() else "torch")
        return measure_retrieval(split(name, part).dataset, model, progress, unreadable), unreadable

    try:
        parity = read_parity(folder)
    except ModelFolderError as error:
        yield Check("costs", False, f"cannot be measured again: {error}")
        return
    for precision, entry in parity.items():
        recorded = entry.get("cost")
        if not isinstance(recorded, dict) or not (folder / GRAPH_FILES.get(precision, "")).is_file():
            continue
        name = f"cost onnx {precision}"
        if "not_measured" in recorded:
            yield Check(name, None, f"was not measured when it was exported: {recorded['not_measured']}")
            continue
        try:
            key = str(recorded["dataset"]), str(recorded["split"])
            measured, (before, unreadable) = split(*key), fp32(*key)
            images = without(measured.dataset, unreadable)
            after = measure_retrieval(images, load(folder, "onnx", precision), progress)
            cost = precision_cost(images, before, after, precision)
            yield _compare_cost(name, recorded, cost, precision, len(unreadable))
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        except (KeyError, TypeError, ValueError) as error:
            yield Check(name, False, f"onnx/parity.json is not in the format of zoo export ({error})")


def measure_retrieval(
    dataset: Dataset,
    model: Embedder,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> PerQuery:
    """Return R@1 and MAP@R of each query, by the data set's own protocol.

    Images of a folder that cannot be read are left out, the same for every precision.

    Args:
        dataset: The images.
        model: The model that embeds them.
        progress: Whether to show a progress bar.
        unreadable: Receives the errors of the images that are left out, by source.

    Raises:
        ImageError: If no image of a folder can be read, or one image of another data set cannot.
    """
    rows, measured = embed_dataset(model, dataset, 32, progress, {} if unreadable is None else unreadable)
    return per_query(**search_arguments(rows, measured.labels, measured), k=(1,))


def precision_cost(dataset: Dataset, fp32: PerQuery, variant: PerQuery, precision: str) -> dict[str, Any]:
    """Return the variant's means, their differences from fp32 and two 95 % intervals of each difference.

    Both intervals are of the differences between the variant and fp32 on each query, so the difficulty of the queries
    cancels out. They answer two questions:

    interval: Over classes. What would the variant lose on images of further classes? The number of classes
        limits it.
    over_queries: Over single queries. What does the variant lose on images of these classes, searched in this
        gallery? It is narrower where the queries of a class win and lose together, and says nothing about other
        classes.

    `within_target` is True if an interval is above a loss of `COST_TARGET`. The scores must be of at least two classes.

    Args:
        dataset: The images that were measured, all of them readable.
        fp32: The scores of each query in fp32.
        variant: The scores of the same queries with the variant.
        precision: The variant's precision; its means have this key.
    """
    changes = {name: variant.values[name] - fp32.values[name] for name in COST_METRICS}
    over_classes = intervals_over_classes(changes, fp32.classes, SIGNED)
    over_queries = intervals_over_classes(changes, np.arange(len(fp32.rows)), SIGNED)
    before, after = fp32.means(), variant.means()
    rows = {
        name: {
            "fp32": before[name],
            precision: after[name],
            "difference": float(changes[name].mean()),
            **_interval_verdict(over_classes[name]),
            "over_queries": _interval_verdict(over_queries[name]),
        }
        for name in COST_METRICS
    }
    facts: dict[str, Any] = {"dataset": dataset.name, "split": dataset.split, "queries": len(fp32.rows)}
    facts |= {"protocol": protocol_name(dataset), "data": asdict(dataset.identity)}
    return {**facts, "classes": len(np.unique(fp32.classes)), "target": COST_TARGET, **rows}


def _interval_verdict(interval: tuple[float, float]) -> dict[str, Any]:
    return {"interval": list(interval), "within_target": cost_verdict(interval) == "met"}


def _recall_depths(result: Mapping[str, Any]) -> tuple[int, ...]:
    """Return every K of recall_at_K in an evaluation."""
    matches = (re.fullmatch(r"recall_at_(\d+)", metric) for metric in result["metrics"])
    return tuple(sorted(int(match[1]) for match in matches if match)) or (1,)


def _matching_split(
    find: Callable[..., EvaluationSplit], folder: Path, data: str | Path | None, subject: str, name: str, split: str
) -> EvaluationSplit:
    """Return the split of a data set; raise `DatasetError` where a whole folder would stand for a split of it."""
    measured = find(folder, read_card(folder), name, split, folder_for(name, data))
    if measured.dataset.split == WHOLE != split:
        reason = measured.notes[0] if measured.notes else "the folder is not split into train and test"
        raise DatasetError(f"{reason}; {subject} are of its {split} split", code="wrong-split")
    return measured


def _other_images(recorded: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Return that recorded scores are of other images of a user's own; "" if not, and of a published data set."""
    if recorded["dataset"] != FOLDER or same_images(recorded, measured):
        return ""
    return f"other images: these are {data_title(measured)}, the recorded ones {data_title(recorded)}"


def _compare_scores(name: str, result: Mapping[str, Any], evaluation: Evaluation) -> Check:
    """Compare recorded scores with a new evaluation; metrics of further groups are named as not checked."""
    if problem := _other_images(result, evaluation.to_json()):
        return Check(name, None, problem)
    if "queries" in result and evaluation.queries != result["queries"]:
        left_out = f" ({evaluation.unreadable} unreadable left out)" if evaluation.unreadable else ""
        counts = f"{evaluation.queries} queries{left_out}, the card's scores are of {result['queries']}"
        return Check(name, False, f"{counts}: other images")
    claimed: Mapping[str, float] = result["metrics"]
    compared = [metric for metric in claimed if metric in evaluation.metrics]
    deviations = [
        f"{metric} {evaluation.metrics[metric]:.4f}, not {claimed[metric]:.4f}"
        for metric in compared
        if not abs(evaluation.metrics[metric] - claimed[metric]) <= TOLERANCE + ROUNDING
    ]
    unchecked = _unchecked([metric for metric in claimed if metric not in evaluation.metrics])
    if deviations or not compared:
        problem = "; ".join(deviations) or "has no score that can be measured again"
        return Check(name, False, problem + unchecked)
    first = compared[0]
    summary = f"{first} {evaluation.metrics[first]:.4f}, {len(compared)} scores within {TOLERANCE:g}"
    return Check(name, True, summary + unchecked)


def _unchecked(metrics: Sequence[str]) -> str:
    return f"; not checked: {', '.join(metrics)}" if metrics else ""


def _compare_cost(
    name: str,
    recorded: Mapping[str, Any],
    measured: Mapping[str, Any],
    precision: str,
    unreadable: int,
) -> Check:
    if problem := _other_images(recorded, measured):
        return Check(name, None, problem)
    if measured["queries"] != recorded["queries"]:
        left_out = f" ({unreadable} unreadable left out)" if unreadable else ""
        counts = f"{measured['queries']} queries{left_out}, the costs are of {recorded['queries']}"
        return Check(name, False, f"{counts}: other images")
    deviations = [
        deviation
        for metric in COST_METRICS
        for deviation in _deviations(metric, recorded[metric], measured[metric], precision)
    ]
    change = ", ".join(f"{metric} {measured[metric]['difference']:+.4f}" for metric in COST_METRICS)
    summary = f"{change} on {data_title(measured)}, within {TOLERANCE:g}"
    return Check(name, not deviations, "; ".join(deviations) or summary)


def _deviations(metric: str, recorded: Mapping[str, Any], measured: Mapping[str, Any], precision: str) -> Iterator[str]:
    """Yield the values of one metric that differ by more than the tolerance, in words."""
    pairs = {
        "by fp32": (measured["fp32"], recorded["fp32"]),
        f"by {precision}": (measured[precision], recorded[precision]),
        "difference": (measured["difference"], recorded["difference"]),
        "interval's lower end": (measured["interval"][0], recorded["interval"][0]),
        "interval's upper end": (measured["interval"][1], recorded["interval"][1]),
    }
    ends = zip(measured["over_queries"]["interval"], recorded["over_queries"]["interval"], strict=True)
    pairs |= {f"interval's {end} end over queries": pair for end, pair in zip(("lower", "upper"), ends, strict=True)}
    for value, (now, before) in pairs.items():
        if not abs(now - float(before)) <= TOLERANCE + ROUNDING:
            yield f"{metric}, {value}: {now:.4f}, not {float(before):.4f}"
