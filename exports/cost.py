"""What a precision costs in retrieval: the same queries with fp32 and with the variant, class by class."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exports.parity import Run
from zoo.data import DATASETS
from zoo.data.dataset import FOLDER, WHOLE, Dataset
from zoo.errors import ImageError, ZooError
from zoo.evaluation.remeasure import precision_cost, retrieval
from zoo.evaluation.retrieval import PerQuery
from zoo.evaluation.split import split_for
from zoo.models.card import Card
from zoo.models.load import Embedder

UNPARTED = (
    "the folder does not say which classes are for testing (folders train and test, or a table's column split, would)"
)


@dataclass(frozen=True)
class Baseline:
    """The fp32 graph's retrieval on the test split that a model is measured on. unreadable: how many of a folder's
    images were left out. notes: what whoever reads the costs should know, in words."""

    dataset: Dataset
    measured: PerQuery
    unreadable: int = 0
    notes: tuple[str, ...] = ()

    def cost(self, folder: Path, card: Card, run: Run, precision: str) -> dict[str, Any]:
        """What `zoo.evaluation.remeasure.precision_cost` gives of the variant, and how many images were left out."""
        variant = _retrieval(self.dataset, _embedder(folder, card, run, precision))
        cost = precision_cost(self.dataset, self.measured, variant, precision)
        return {**cost, "unreadable": self.unreadable} if self.unreadable else cost


def baseline(folder: Path, card: Card, run: Run, data: Path | None = None) -> Baseline | str:
    """fp32's retrieval on the test classes of the card's data set; or, in words, why it cannot be measured.

    Of a folder that is not parted these are the classes that the model's recipe.json says were held out.
    """
    if card.dataset not in DATASETS:
        return f"{card.dataset!r} is no data set that is known here"
    if card.dataset == FOLDER and data is None:
        return "the model was trained on a folder of images; name one with a subfolder a class: --data DIR"
    unreadable: dict[str, ImageError] = {}
    try:
        found = split_for(folder, card, card.dataset, "test", data)
        if found.dataset.split == WHOLE:
            return "; ".join((*found.notes, UNPARTED))
        measured = _retrieval(found.dataset, _embedder(folder, card, run, "fp32"), unreadable)
    except ZooError as error:
        return str(error)
    if len(np.unique(measured.classes)) < 2:
        return "there is a single class to test on"
    left_out = (f"left out: {error}" for error in unreadable.values())
    return Baseline(found.dataset, measured, len(unreadable), (*found.notes, *left_out))


def _retrieval(
    dataset: Dataset, model: Embedder, unreadable: MutableMapping[str, ImageError] | None = None
) -> PerQuery:
    return retrieval(dataset, model, sys.stderr.isatty(), unreadable)


def _embedder(folder: Path, card: Card, run: Run, precision: str) -> Embedder:
    return Embedder(card, folder, "onnx", precision, "cpu", run)
