"""What precisions cost in retrieval, measured again and held against what onnx/parity.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zoo.datasets import load as load_dataset
from zoo.datasets.dataset import Dataset
from zoo.errors import DatasetError, MissingDependencyError, ModelFolderError, ZooError
from zoo.evaluation.metrics import PerQuery
from zoo.loading import load
from zoo.onnx_runtime import FILES
from zoo.parity import COST_METRICS, read_parity
from zoo.precision_cost import precision_cost, retrieval
from zoo.remeasure import ROUNDING, TOLERANCE
from zoo.verify import Check


def remeasure_costs(folder: Path, data: str | Path | None = None, progress: bool = False) -> Iterator[Check]:
    """A check for each graph of which onnx/parity.json says what it costs: means, differences and their intervals are
    within `TOLERANCE` of what is measured again.

    data: where the data sets lie (default: `ZOO_DATA`, else the download cache); one that is not at hand leaves its
    check open. An onnx/parity.json that cannot be read is a failed check.
    """

    @cache
    def dataset(name: str, split: str) -> Dataset:
        return load_dataset(name, split, data)

    @cache
    def fp32(name: str, split: str) -> PerQuery:
        there = (folder / FILES["fp32"]).is_file()
        return retrieval(dataset(name, split), load(folder, "onnx" if there else "torch"), progress)

    try:
        parity = read_parity(folder)
    except ModelFolderError as error:
        yield Check("costs", False, f"cannot be measured again: {error}")
        return
    for precision, entry in parity.items():
        said = entry.get("cost")
        if not isinstance(said, dict) or not (folder / FILES.get(precision, "")).is_file():
            continue
        name = f"cost onnx {precision}"
        if "not_measured" in said:
            yield Check(name, None, f"was not measured when it was exported: {said['not_measured']}")
            continue
        try:
            about = str(said["dataset"]), str(said["split"])
            known, before = dataset(*about), fp32(*about)
            after = retrieval(known, load(folder, "onnx", precision), progress)
            yield _compared(name, said, precision_cost(known, before, after, precision), precision)
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        except (KeyError, TypeError, ValueError) as error:
            yield Check(name, False, f"onnx/parity.json is not what zoo export writes ({error})")


def _compared(name: str, said: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> Check:
    if again["queries"] != said["queries"]:
        same = f"{again['queries']} queries, the costs are of {said['queries']}"
        # A folder of images is a data set of whatever name.
        return Check(name, None if again["dataset"] == "folder" else False, f"{same}: other images")
    off = [why for metric in COST_METRICS for why in _off(metric, said[metric], again[metric], precision)]
    change = ", ".join(f"{metric} {again[metric]['difference']:+.4f}" for metric in COST_METRICS)
    return Check(name, not off, "; ".join(off) or f"{change} on {again['dataset']}, within {TOLERANCE:g}")


def _off(metric: str, said: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> Iterator[str]:
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
