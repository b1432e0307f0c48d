"""What precisions cost in retrieval, measured again and held against what onnx/parity.json says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from zoo.data.dataset import FOLDER, WHOLE
from zoo.errors import DatasetError, ImageError, MissingDependencyError, ModelFolderError, ZooError
from zoo.evaluation.metrics import PerQuery
from zoo.held_out import Found, split_for
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.onnx_runtime import FILES
from zoo.models.results import COST_METRICS, Check, read_parity
from zoo.precision_cost import precision_cost, retrieval
from zoo.remeasure import ROUNDING, TOLERANCE, unparted


def remeasure_costs(folder: Path, data: str | Path | None = None, progress: bool = False) -> Iterator[Check]:
    """A check for each graph of which onnx/parity.json says what it costs: means, differences and their intervals are
    within `TOLERANCE` of what is measured again.

    data: where the data sets lie (default: `ZOO_DATA`, else the download cache); one that is not at hand leaves its
    check open, and so does a folder of other images. An onnx/parity.json that cannot be read is a failed check.
    """

    found = cache(partial(_found, folder, data))

    @cache
    def fp32(name: str, split: str) -> tuple[PerQuery, int]:
        """And how many images were left out."""
        there, unreadable = (folder / FILES["fp32"]).is_file(), dict[str, ImageError]()
        model = load(folder, "onnx" if there else "torch")
        return retrieval(found(name, split).dataset, model, progress, unreadable), len(unreadable)

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
            known, before = found(*about), fp32(*about)
            after = retrieval(known.dataset, load(folder, "onnx", precision), progress)
            yield _compare_cost(name, said, _again(known, *before, after, precision), precision)
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        except (KeyError, TypeError, ValueError) as error:
            yield Check(name, False, f"onnx/parity.json is not what zoo export writes ({error})")


def _found(folder: Path, data: str | Path | None, name: str, split: str) -> Found:
    """Raises `DatasetError` where all of a folder would be taken for a split of it."""
    known = split_for(folder, read_card(folder), name, split, data)
    if known.dataset.split == WHOLE != split:
        raise DatasetError(unparted(split, known, "the costs"))
    return known


def _again(known: Found, fp32: PerQuery, unreadable: int, variant: PerQuery, precision: str) -> dict[str, Any]:
    """What was measured now; same: False where the images are known to be others, which may well cost other."""
    cost = precision_cost(known.dataset, fp32, variant, precision)
    return {**cost, "unreadable": unreadable, "same": known.same is not False}


def _compare_cost(name: str, said: Mapping[str, Any], again: Mapping[str, Any], precision: str) -> Check:
    if again["queries"] != said["queries"]:
        unread = f" ({again['unreadable']} unreadable left out)" if again["unreadable"] else ""
        counts = f"{again['queries']} queries{unread}, the costs are of {said['queries']}"
        # A folder of images is a data set of whatever name.
        return Check(name, None if again["dataset"] == FOLDER else False, f"{counts}: other images")
    off = [why for metric in COST_METRICS for why in _off(metric, said[metric], again[metric], precision)]
    if off and not again["same"]:
        return Check(name, None, f"{'; '.join(off)}: other images than those that were held out")
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
