"""What a precision costs in retrieval: the same queries with fp32 and with the variant."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from zoo.data.dataset import Dataset
from zoo.errors import ImageError
from zoo.evaluation.evaluate import embedded, searched
from zoo.evaluation.intervals import bootstrap_intervals
from zoo.evaluation.metrics import PerQuery, per_query
from zoo.models.load import Embedder
from zoo.models.results import COST_METRICS, COST_TARGET, verdict


def retrieval(
    dataset: Dataset,
    model: Embedder,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> PerQuery:
    """R@1 and MAP@R of each query, by the data set's own protocol.

    Of a folder, images that cannot be read are left out, and put into `unreadable` where that is given, by their
    source. They are the same for every precision.
    """
    rows, read = embedded(model, dataset, 32, progress, {} if unreadable is None else unreadable)
    return per_query(**searched(rows, read.labels, read), k=(1,))


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
            **_judged(over_classes[name]),
            "over_queries": _judged(over_queries[name]),
        }
        for name in COST_METRICS
    }
    known = {"dataset": dataset.name, "split": dataset.split, "queries": len(fp32.rows)}
    return {**known, "classes": len(np.unique(fp32.classes)), "target": COST_TARGET, **rows}


def _judged(interval: tuple[float, float]) -> dict[str, Any]:
    return {"interval": list(interval), "within_target": verdict(interval) == "met"}
