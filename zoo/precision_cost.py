"""What a precision costs in retrieval: the same queries with fp32 and with the variant, class by class."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.embedder import Embedder
from zoo.evaluation.evaluate import searched
from zoo.evaluation.intervals import bootstrap_intervals
from zoo.evaluation.metrics import PerQuery, per_query
from zoo.parity import COST_METRICS, COST_TARGET


def retrieval(dataset: Dataset, model: Embedder, progress: bool = False) -> PerQuery:
    """R@1 and MAP@R of each query, by the data set's own protocol."""
    rows = model.embed(dataset.images, batch_size=32, progress=progress)
    return per_query(**searched(rows, dataset.labels, dataset), k=(1,))


def precision_cost(dataset: Dataset, fp32: PerQuery, variant: PerQuery, precision: str) -> dict[str, Any]:
    """The variant's means, their differences from fp32 and 95 % intervals of these; two classes at least.

    The bootstrap is paired: whole classes are drawn, and of each its queries' differences, so that what makes some
    classes harder than others falls out. `within_target` says that the interval lies above a loss of `COST_TARGET`.
    """
    changes = {name: variant.values[name] - fp32.values[name] for name in COST_METRICS}
    intervals = bootstrap_intervals(changes, fp32.classes)
    before, after = fp32.means(), variant.means()
    rows = {
        name: {
            "fp32": before[name],
            precision: after[name],
            "difference": float(changes[name].mean()),
            "interval": list(intervals[name]),
            "within_target": intervals[name][0] >= -COST_TARGET,
        }
        for name in COST_METRICS
    }
    known = {"dataset": dataset.name, "split": dataset.split, "queries": len(fp32.rows)}
    return {**known, "classes": len(np.unique(fp32.classes)), "target": COST_TARGET, **rows}
