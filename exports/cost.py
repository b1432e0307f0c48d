"""What a precision costs in retrieval: the same queries with fp32 and with the variant, class by class."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exports.parity import Run
from zoo.cards import Card
from zoo.datasets import DATASETS
from zoo.datasets import load as load_dataset
from zoo.datasets.dataset import Dataset
from zoo.embedder import Embedder
from zoo.errors import ZooError
from zoo.evaluation.evaluate import searched
from zoo.evaluation.intervals import bootstrap_intervals
from zoo.evaluation.metrics import PerQuery, per_query

TARGET = 0.002
"""The most that R@1 and MAP@R may fall: 0.2 points."""

METRICS = ("recall_at_1", "map_at_r")


@dataclass(frozen=True)
class Baseline:
    """The fp32 graph's retrieval on the test split that a model is measured on."""

    dataset: Dataset
    measured: PerQuery

    def cost(self, folder: Path, card: Card, run: Run, precision: str) -> dict[str, Any]:
        """The variant's means, their differences from fp32 and 95 % intervals of these.

        The bootstrap is paired: whole classes are drawn, and of each its queries' differences, so that what makes some
        classes harder than others falls out. `within_target` says that the interval lies above a loss of 0.2 points.
        """
        variant = retrieval(self.dataset, _embedder(folder, card, run, precision))
        changes = {name: variant.values[name] - self.measured.values[name] for name in METRICS}
        intervals = bootstrap_intervals(changes, self.measured.classes)
        fp32, means = self.measured.means(), variant.means()
        rows = {
            name: {
                "fp32": fp32[name],
                precision: means[name],
                "difference": float(changes[name].mean()),
                "interval": list(intervals[name]),
                "within_target": intervals[name][0] >= -TARGET,
            }
            for name in METRICS
        }
        known = {"dataset": self.dataset.name, "split": self.dataset.split, "queries": len(self.measured.rows)}
        return {**known, "classes": len(np.unique(self.measured.classes)), "target": TARGET, **rows}


def baseline(folder: Path, card: Card, run: Run, data: Path | None = None) -> Baseline | str:
    """fp32's retrieval on the test classes of the card's data set; or, in words, why it cannot be measured."""
    if card.dataset not in DATASETS:
        return f"{card.dataset!r} is no data set that is known here"
    try:
        dataset = load_dataset(card.dataset, "test", data)
        if card.dataset == "folder" and list(dataset.images) == list(load_dataset("folder", "train", data).images):
            return "the folder does not say which classes are for testing (subfolders train and test would)"
        measured = retrieval(dataset, _embedder(folder, card, run, "fp32"))
    except ZooError as error:
        return str(error)
    return Baseline(dataset, measured) if len(np.unique(measured.classes)) > 1 else "there is a single class to test on"


def retrieval(dataset: Dataset, model: Embedder) -> PerQuery:
    """R@1 and MAP@R of each query, by the data set's own protocol."""
    rows = model.embed(dataset.images, batch_size=32, progress=sys.stderr.isatty())
    return per_query(**searched(rows, dataset.labels, dataset), k=(1,))


def _embedder(folder: Path, card: Card, run: Run, precision: str) -> Embedder:
    return Embedder(card, folder, "onnx", precision, "cpu", run)
