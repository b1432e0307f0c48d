"""A model's scores measured again and held against what its results.json says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from zoo.data.dataset import FOLDER, WHOLE
from zoo.errors import DatasetError, MissingDependencyError, ModelFolderError, ZooError
from zoo.evaluation.evaluate import evaluate
from zoo.held_out import Found, split_for
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.results import Check, Evaluation, read_results

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
    def found(name: str, split: str) -> Found:
        return split_for(folder, read_card(folder), name, split, data)

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
                yield Check(name, None, unparted(about[1], known))
                continue
            model = load(folder, about[2], about[3], device if about[2] == "torch" else None)
            again = evaluate(model, known.dataset, k=_ks(result), progress=progress, unreadable={})  # counted there
        except (DatasetError, MissingDependencyError) as error:
            yield Check(name, None, str(error))
        except ZooError as error:
            yield Check(name, False, str(error))
        else:
            yield _compare_scores(name, result, again, known.same is not False)


def _ks(result: Mapping[str, Any]) -> tuple[int, ...]:
    found = (re.fullmatch(r"recall_at_(\d+)", metric) for metric in result["metrics"])
    return tuple(sorted(int(match[1]) for match in found if match)) or (1,)


def unparted(split: str, whole: Found, measured: str = "the card's scores") -> str:
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
