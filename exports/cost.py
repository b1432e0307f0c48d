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
from zoo.evaluation.metrics import PerQuery
from zoo.precision_cost import precision_cost, retrieval


@dataclass(frozen=True)
class Baseline:
    """The fp32 graph's retrieval on the test split that a model is measured on."""

    dataset: Dataset
    measured: PerQuery

    def cost(self, folder: Path, card: Card, run: Run, precision: str) -> dict[str, Any]:
        """What `zoo.precision_cost.precision_cost` gives of the variant."""
        variant = _retrieval(self.dataset, _embedder(folder, card, run, precision))
        return precision_cost(self.dataset, self.measured, variant, precision)


def baseline(folder: Path, card: Card, run: Run, data: Path | None = None) -> Baseline | str:
    """fp32's retrieval on the test classes of the card's data set; or, in words, why it cannot be measured."""
    if card.dataset not in DATASETS:
        return f"{card.dataset!r} is no data set that is known here"
    if card.dataset == "folder" and data is None:
        return "the model was trained on a folder of images; name one with a subfolder a class: --data DIR"
    try:
        dataset = load_dataset(card.dataset, "test", data)
        if card.dataset == "folder" and list(dataset.images) == list(load_dataset("folder", "train", data).images):
            return "the folder does not say which classes are for testing (subfolders train and test would)"
        measured = _retrieval(dataset, _embedder(folder, card, run, "fp32"))
    except ZooError as error:
        return str(error)
    return Baseline(dataset, measured) if len(np.unique(measured.classes)) > 1 else "there is a single class to test on"


def _retrieval(dataset: Dataset, model: Embedder) -> PerQuery:
    return retrieval(dataset, model, progress=sys.stderr.isatty())


def _embedder(folder: Path, card: Card, run: Run, precision: str) -> Embedder:
    return Embedder(card, folder, "onnx", precision, "cpu", run)
