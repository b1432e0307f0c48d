"""Zoo verify --data: scores and precision costs again.

What a precision costs in retrieval: the same queries with fp32 and with the variant.

A model's scores measured again and held against what its results.json says.

What precisions cost in retrieval, measured again and held against what onnx/parity.json says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.dataset import FOLDER, WHOLE, Dataset
from zoo.errors import DatasetError, ImageError, MissingDependencyError, ModelFolderError, ZooError
from zoo.evaluation.bootstrap import bootstrap_intervals
from zoo.evaluation.evaluate import embed_dataset, evaluate, search_arguments
from zoo.evaluation.retrieval import PerQuery, per_query
from zoo.evaluation.split import EvaluationSplit, find_split
from zoo.models.card import read_card
from zoo.models.load import Embedder, load
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import COST_METRICS, COST_TARGET, Check, Evaluation, cost_verdict, read_parity, read_results


def measure_retrieval(
    dataset: Dataset,
    model: Embedder,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> PerQuery:
    """R@1 and MAP@R of each query, by the data set's own protocol.

    Of a folder, images that cannot be read are left out, and put into `unreadable` where that is given, by their
    source. They are the same for every precision.
    """
    rows, read = embed_dataset(model, dataset, 32, progress, {} if unreadable is None else unreadable)
    return per_query(**search_arguments(rows, read.labels, read), k=(1,))


def precision_cost(dataset: Dataset, fp32: PerQuery, variant: PerQuery, precision: str) -> dict[str, Any]:
    """The variant's means, their differences from fp32 and two 95 % intervals of each; two classes at least.

    Both are of paired bootstraps: what is drawn are differences between the variant and fp32 on one query, so that what
    makes some queries harder than others falls out. They answer two questions:

    interval: whole classes are drawn, and of each its queries' differences. What would the variant lose on images of
    further classes? The number of classes limits it.
    over_queries: single queries are drawn. What does the variant lose on images of these classes, searched in this
    gallery? It is the narrower where the queries of a class win and lose together, and says nothing of other classes.

    `within_target` says that an interval lies above a loss of `COST_TARGET`.
    """
    changes = {name: variant.values[name] - fp32.values[name] for name in COST_METRICS}
    over_classes = bootstrap_intervals(changes, fp32.classes)
    over_queries = bootstrap_intervals(changes, np.arange(len(fp32.rows)))
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
    known = {"dataset": dataset.name, "split": dataset.split, "queries": len(fp32.rows)}
    return {**known, "classes": len(np.unique(fp32.classes)), "target": COST_TARGET, **rows}


def _interval_verdict(interval: tuple[float, float]) -> dict[str, Any]:
    return {"interval": list(interval), "within_target": cost_verdict(interval) == "met"}


TOLERANCE = 0.002
"""How far a score may be off. Rounding on another processor turns near ties, a query or two in a thousand.

A folder's own intervals are not the measure: they say how far a score would move with other classes, not on the same
images, and whoever writes the score writes them too.
"""

ROUNDING = 1e-9
"""Of decimal fractions, so that a score that is off by just the tolerance passes."""


def remeasure(
    folder: Path, data: str | Path | None = None, progress: bool = False, device: str | None = None
) -> Iterator[Check]:
    """A check for each measurement in the folder: its scores are within `TOLERANCE` of what is measured again.

    Means over queries are; scores of further groups of metrics are not measured again, and named as not checked.

    data: where the data sets lie (default: `ZOO_DATA`, else the download cache); one that is not at hand leaves its
    check open, and so does a folder of other images. device: of the scores by torch, as `zoo.load` takes it. A
    results.json that cannot be read is a failed check.
    """

    @cache
    def found(name: str, split: str) -> EvaluationSplit:
        return find_split(folder, read_card(folder), name, split, data)

    try:
        results = read_results(folder)
    except ModelFolderError as error:
        yield Check("scores", False, f"cannot be measured again: {error}")
        return
    for result in results:
        about = [str(result[key]) for key in ("dataset", "split", "runtime", "precision")]
        name = f"scores {' '.join(about)}"
        if "None" in about:
            yield Check(name, None, "of plain embeddings, not of a model on a data set")
            continue
        try:
            known = found(about[0], about[1])
            if known.dataset.split == WHOLE != about[1]:
                yield Check(name, None, _unsplit_reason(about[1], known))
                continue
            model = load(folder, about[2], about[3], device if about[2] == "torch" else None)
            again = evaluate(
                model, known.dataset, k=_recall_depths(result), progress=progress, unreadable={}
            )  # counted there
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        else:
            yield _compare_scores(name, result, again, known.same is not False)


def _recall_depths(result: Mapping[str, Any]) -> tuple[int, ...]:
    found = (re.fullmatch(r"recall_at_(\d+)", metric) for metric in result["metrics"])
    return tuple(sorted(int(match[1]) for match in found if match)) or (1,)


def _unsplit_reason(split: str, whole: EvaluationSplit, measured: str = "the card's scores") -> str:
    """Why what was measured on a split of a folder is not measured again on all of it."""
    why = whole.notes[0] if whole.notes else "the folder is not parted into train and test"
    return f"{why}; {measured} are of its {split} split"


def _compare_scores(name: str, result: Mapping[str, Any], again: Evaluation, same: bool) -> Check:
    """Only what is measured again without further groups of metrics is compared. same: False where the images are known
    to be others, whose scores may well be others, too."""
    if "queries" in result and again.queries != result["queries"]:
        unread = f" ({again.unreadable} unreadable left out)" if again.unreadable else ""
        counts = f"{again.queries} queries{unread}, the card's scores are of {result['queries']}"
        # A folder of images is a data set of whatever name.
        return Check(name, None if again.dataset == FOLDER else False, f"{counts}: other images")
    claimed: Mapping[str, float] = result["metrics"]
    compared = [metric for metric in claimed if metric in again.metrics]
    off = [
        f"{metric} {again.metrics[metric]:.4f}, not {claimed[metric]:.4f}"
        for metric in compared
        if not abs(again.metrics[metric] - claimed[metric]) <= TOLERANCE + ROUNDING
    ]
    unchecked = _unchecked([metric for metric in claimed if metric not in again.metrics])
    if off and not same:
        return Check(name, None, f"{'; '.join(off)}: other images than those that were held out")
    if off or not compared:
        return Check(name, False, ("; ".join(off) or "holds no score that can be measured again") + unchecked)
    first = compared[0]
    about = f"{first} {again.metrics[first]:.4f}, {len(compared)} scores within {TOLERANCE:g}"
    return Check(name, True, about + unchecked)


def _unchecked(metrics: Sequence[str]) -> str:
    return f"; not checked: {', '.join(metrics)}" if metrics else ""


def remeasure_costs(folder: Path, data: str | Path | None = None, progress: bool = False) -> Iterator[Check]:
    """A check for each graph of which onnx/parity.json says what it costs: means, differences and their intervals are
    within `TOLERANCE` of what is measured again.

    data: where the data sets lie (default: `ZOO_DATA`, else the download cache); one that is not at hand leaves its
    check open, and so does a folder of other images. An onnx/parity.json that cannot be read is a failed check.
    """

    found = cache(partial(_find_split, folder, data))

    @cache
    def fp32(name: str, split: str) -> tuple[PerQuery, int]:
        """And how many images were left out."""
        there, unreadable = (folder / GRAPH_FILES["fp32"]).is_file(), dict[str, ImageError]()
        model = load(folder, "onnx" if there else "torch")
        return measure_retrieval(found(name, split).dataset, model, progress, unreadable), len(unreadable)

    try:
        parity = read_parity(folder)
    except ModelFolderError as error:
        yield Check("costs", False, f"cannot be measured again: {error}")
        return
    for precision, entry in parity.items():
        said = entry.get("cost")
        if not isinstance(said, dict) or not (folder / GRAPH_FILES.get(precision, "")).is_file():
            continue
        name = f"cost onnx {precision}"
        if "not_measured" in said:
            yield Check(name, None, f"was not measured when it was exported: {said['not_measured']}")
            continue
        try:
            about = str(said["dataset"]), str(said["split"])
            known, before = found(*about), fp32(*about)
            after = measure_retrieval(known.dataset, load(folder, "onnx", precision), progress)
            yield _compare_cost(name, said, _measured_cost(known, *before, after, precision), precision)
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        except (KeyError, TypeError, ValueError) as error:
            yield Check(name, False, f"onnx/parity.json is not what zoo export writes ({error})")


def _find_split(folder: Path, data: str | Path | None, name: str, split: str) -> EvaluationSplit:
    """Raises `DatasetError` where all of a folder would be taken for a split of it."""
    known = find_split(folder, read_card(folder), name, split, data)
    if known.dataset.split == WHOLE != split:
        raise DatasetError(_unsplit_reason(split, known, "the costs"))
    return known


def _measured_cost(
    known: EvaluationSplit, fp32: PerQuery, unreadable: int, variant: PerQuery, precision: str
) -> dict[str, Any]:
    """What was measured now; same: False where the images are known to be others, which may well cost other."""
    cost = precision_cost(known.dataset, fp32, variant, precision)
    return {**cost, "unreadable": unreadable, "same": known.same is not False}


def _compare_cost(name: str, said: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> Check:
    if again["queries"] != said["queries"]:
        unread = f" ({again['unreadable']} unreadable left out)" if again["unreadable"] else ""
        counts = f"{again['queries']} queries{unread}, the costs are of {said['queries']}"
        # A folder of images is a data set of whatever name.
        return Check(name, None if again["dataset"] == FOLDER else False, f"{counts}: other images")
    off = [why for metric in COST_METRICS for why in _deviations(metric, said[metric], again[metric], precision)]
    if off and not again["same"]:
        return Check(name, None, f"{'; '.join(off)}: other images than those that were held out")
    change = ", ".join(f"{metric} {again[metric]['difference']:+.4f}" for metric in COST_METRICS)
    return Check(name, not off, "; ".join(off) or f"{change} on {again['dataset']}, within {TOLERANCE:g}")


def _deviations(metric: str, said: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> Iterator[str]:
    pairs = {
        "by fp32": (again["fp32"], said["fp32"]),
        f"by {precision}": (again[precision], said[precision]),
        "difference": (again["difference"], said["difference"]),
        "interval's lower end": (again["interval"][0], said["interval"][0]),
        "interval's upper end": (again["interval"][1], said["interval"][1]),
    }
    if "over_queries" in said:  # older packages did not write it
        ends = zip(again["over_queries"]["interval"], said["over_queries"]["interval"], strict=True)
        pairs |= {
            f"interval's {end} end over queries": pair for end, pair in zip(("lower", "upper"), ends, strict=True)
        }
    for what, (now, before) in pairs.items():
        if not abs(now - float(before)) <= TOLERANCE + ROUNDING:
            yield f"{metric}, {what}: {now:.4f}, not {float(before):.4f}"
