"""Measure a model, or embeddings, on a data set of classes that it never saw."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from zoo.datasets import load as load_dataset
from zoo.datasets.dataset import Dataset
from zoo.embedder import Embedder
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation.intervals import bootstrap_intervals
from zoo.evaluation.metrics import DEFAULT_K, PerQuery, per_query
from zoo.evaluation.neighbours import as_rows
from zoo.loading import load
from zoo.results import Evaluation

PROTOCOL = "leave-one-out, cosine, exact"
QUERY_GALLERY = "queries to gallery, cosine, exact"


def evaluate(
    model: Embedder | str | os.PathLike[str] | np.ndarray,
    dataset: str | Dataset | None = None,
    split: str = "test",
    data: str | Path | None = None,
    labels: Any = None,
    k: Sequence[int] = DEFAULT_K,
    batch_size: int = 64,
    progress: bool = False,
) -> Evaluation:
    """Retrieval metrics of a model on a data set, each image searching all others, with 95 % intervals over classes.

    Where the data set has the factor `query`, its queries search its gallery instead, and nothing else is searched.

    model: a loaded model, a name or path (loaded with torch), or embeddings [n, dim].
    dataset: a data set's name, or one that is loaded; by default the one that the model was trained for.
    data: where the data set lies (default: `ZOO_DATA`, else the download cache).
    labels: of plain embeddings, in place of a data set. k: the K of recall_at_K.

    Raises the errors of `zoo.load`, `zoo.datasets.load` and `retrieval_metrics`.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if isinstance(model, Embedder):
        if labels is not None:
            raise UsageError("labels go with plain embeddings; a model is measured on a data set, which has its own.")
        dataset = _dataset(dataset or model.card.dataset, split, data)
        rows = model.embed(dataset.images, batch_size, progress)
        return _summary(_measure(rows, dataset, k), rows, dataset, model)
    if (labels is None) == (dataset is None):
        raise UsageError("embeddings are measured against labels or a data set: give one of the two.")
    known = _dataset(dataset, split, data) if dataset is not None else None
    return _summary(_measure(model, known, k) if known else per_query(model, labels, k), np.asarray(model), known)


def _dataset(dataset: str | Dataset, split: str, data: str | Path | None) -> Dataset:
    return dataset if isinstance(dataset, Dataset) else load_dataset(dataset, split, data)


def _measure(rows: Any, dataset: Dataset, k: Sequence[int]) -> PerQuery:
    """Each of the rows searches all others, or the queries the gallery where the data set parts them."""
    if "query" not in dataset.factors:
        return per_query(rows, dataset.labels, k)
    rows = as_rows(rows, "embeddings")
    if len(rows) != len(dataset):
        raise EvaluationError(f"there are {len(rows)} embeddings for the {len(dataset)} images of {dataset.name}.")
    asks = dataset.factors["query"].astype(bool)
    return per_query(rows[~asks], dataset.labels[~asks], k, rows[asks], dataset.labels[asks])


def _summary(
    measured: PerQuery, rows: np.ndarray, dataset: Dataset | None, model: Embedder | None = None
) -> Evaluation:
    classes = len(np.unique(measured.classes))
    return Evaluation(
        model=model.card.name if model else None,
        dataset=dataset.name if dataset else None,
        split=dataset.split if dataset else None,
        protocol=QUERY_GALLERY if dataset and "query" in dataset.factors else PROTOCOL,
        runtime=model.runtime if model else None,
        precision=model.precision if model else None,
        dim=rows.shape[1],
        queries=len(measured.rows) + measured.without_relatives,
        queries_without_relatives=measured.without_relatives,
        classes=classes,
        metrics=measured.means(),
        intervals=bootstrap_intervals(measured.values, measured.classes) if classes > 1 else {},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(model),
    )


def _versions(model: Embedder | None) -> dict[str, str]:
    """The versions of what computed the numbers."""
    runtimes = {"torch": ("torch", "timm"), "onnx": ("onnxruntime", "onnxruntime-gpu")}
    names = ("dml-zoo", "numpy", *(runtimes[model.runtime] if model else ()))
    return {name: found for name in names if (found := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
