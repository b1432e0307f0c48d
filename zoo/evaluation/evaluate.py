"""Measure a model or embeddings.

The groups of metrics that can be asked for by name.

Measure a model, or embeddings, on a data set of classes that it never saw.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data import check_dataset, load_dataset
from zoo.data.dataset import FOLDER, Dataset, subset
from zoo.errors import EvaluationError, ImageError, UsageError, nearest, none_readable_message
from zoo.evaluation.bootstrap import bootstrap_intervals
from zoo.evaluation.clustering import clustering_metrics
from zoo.evaluation.inputs import as_labels
from zoo.evaluation.knn import as_rows
from zoo.evaluation.retrieval import DEFAULT_K, check_depths, per_query, ranking_per_query
from zoo.evaluation.split import find_split
from zoo.evaluation.structure import structure_metrics
from zoo.evaluation.verification import verification_metrics
from zoo.models.load import Embedder, load
from zoo.models.results import Evaluation
from zoo.paths import library_versions

QUERY_GROUPS = ("retrieval", "ranking")
"""Groups that have a value for each query, and so an interval."""

EMBEDDING_GROUPS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "clustering": clustering_metrics,
    "structure": structure_metrics,
    "verification": verification_metrics,
}
"""Groups that are measured on all embeddings [n, d] with their labels [n] at once."""

GROUPS = (*QUERY_GROUPS, *EMBEDDING_GROUPS)


def parse_groups(names: str | Iterable[str]) -> tuple[str, ...]:
    """The groups named, in their own order and each once: a name or several, "all" meaning every one.

    Raises `UsageError` for an unknown name.
    """
    asked = {names} if isinstance(names, str) else set(names)
    for name in sorted(asked - {*GROUPS, "all"}):
        known = ", ".join((*GROUPS, "all"))
        raise UsageError(f"there is no group of metrics {name!r}.{nearest(name, (*GROUPS, 'all'))} Known: {known}.")
    return GROUPS if "all" in asked else tuple(group for group in GROUPS if group in asked)


def embedding_metrics(groups: Iterable[str], embeddings: Any, labels: Any) -> dict[str, float]:
    """The metrics of those groups that are measured on all embeddings at once; errors as of their functions."""
    found: dict[str, float] = {}
    for group in groups:
        if group in EMBEDDING_GROUPS:
            found |= EMBEDDING_GROUPS[group](embeddings, labels)
    return found


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
    metrics: str | Sequence[str] = "retrieval",
    unreadable: MutableMapping[str, ImageError] | None = None,
    queries: Any = None,
) -> Evaluation:
    """Retrieval metrics of a model on a data set, each image searching all others, with 95 % intervals over classes.

    Where the data set has the factor `query`, its queries search its gallery instead, and nothing else is searched.

    model: a loaded model, a name or path (loaded with torch), or embeddings [n, dim].
    dataset: a data set's name, or one that is loaded; by default the one that the model was trained for.
    split: "train" or "test"; of a folder that is not parted these are the classes that the model's recipe.json says it
        learnt from and those that were held out, where the folder holds them, and "all" is all of it.
    data: where the data set lies (default: `ZOO_DATA`, else the download cache).
    labels: of plain embeddings, in place of a data set. k: the K of recall_at_K.
    metrics: groups to add to retrieval, which is always measured: ranking, clustering, structure, verification, or
        "all" (`zoo.evaluation` lists their keys). The last three are of all images, queries and gallery alike, and
        have no intervals.
    unreadable: takes, by source, what is wrong with the images of a folder or table that cannot be read; a model is
        measured without them, and the measurement says how many there were. Without it each is a warning.
    queries: bool [n], of plain embeddings with labels: which rows search; the others are the gallery that they search.

    Raises the errors of `zoo.load`, `load_dataset`, `retrieval_metrics` and the groups' functions, `UsageError`
    for an unknown group, and `ImageError` for an image of any other data set that cannot be read, or where none can.
    """
    groups, k = parse_groups(metrics), check_depths(k)
    if dataset is not None and not isinstance(dataset, Dataset):
        check_dataset(dataset, split, data)  # before a model is loaded or a network runs for nothing
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if isinstance(model, Embedder):
        if labels is not None or queries is not None:
            raise UsageError(
                "labels and queries go with plain embeddings; a model is measured on a data set, which has its own."
            )
        known = _load_dataset(dataset or model.card.dataset, split, data, model)
        errors = {} if unreadable is None else unreadable
        rows, read = embed_dataset(model, known, batch_size, progress, errors)
        for error in errors.values() if unreadable is None else ():
            warnings.warn(f"left out: {error}", stacklevel=2)
        found = _evaluation(rows, read.labels, read, k, groups)
        return replace(attribute_to_model(found, model), unreadable=len(known) - len(read))
    if (labels is None) == (dataset is None):
        raise UsageError("embeddings are measured against labels or a data set: give one of the two.")
    rows = as_rows(model, "embeddings")
    if dataset is None:
        return _evaluation(rows, labels, None, k, groups, queries=queries)
    if queries is not None:
        raise UsageError("which rows are queries goes with labels; a data set has queries of its own, or none.")
    known = _load_dataset(dataset, split, data)
    return _evaluation(rows, known.labels, known, k, groups)


def attribute_to_model(found: Evaluation, model: Embedder) -> Evaluation:
    """A measurement of rows as one of the model that gave them."""
    return replace(
        found,
        model=model.card.name,
        fingerprint=model.card.fingerprint,
        runtime=model.runtime,
        precision=model.precision,
        versions=library_versions(model.runtime),
    )


def _load_dataset(
    dataset: str | Dataset, split: str, data: str | Path | None, model: Embedder | None = None
) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    if model is None:
        return load_dataset(dataset, split, data)
    return find_split(model.folder, model.card, dataset, split, data).dataset


def embed_dataset(
    model: Embedder, dataset: Dataset, batch_size: int, progress: bool, unreadable: MutableMapping[str, ImageError]
) -> tuple[np.ndarray, Dataset]:
    """Rows of the images that are measured, float32 [n, dim], and these as a data set.

    Of a folder, images that cannot be read are left out and put into `unreadable`, by their source. A published data
    set would be another one without them. Raises `ImageError` for an image of such a one that cannot be read, or where
    none can.
    """
    if dataset.name != FOLDER:
        return model.embed(dataset.images, batch_size, progress), dataset
    rows, errors = model.embed_readable(dataset.images, batch_size, progress)
    if not errors:
        return rows, dataset
    unreadable.update((dataset.sources[place], error) for place, error in errors.items())
    if not len(rows):
        raise ImageError(none_readable_message(len(dataset), next(iter(errors.values()))))
    kept = np.ones(len(dataset), bool)
    kept[list(errors)] = False
    return rows, subset(dataset, kept, dataset.split)


def search_arguments(rows: np.ndarray, labels: Any, dataset: Dataset | None) -> dict[str, Any]:
    """What `per_query` and its like are given: each row searches all others, or the queries the gallery where the data
    set parts them."""
    if dataset is None or "query" not in dataset.factors:
        return {"embeddings": rows, "labels": labels}
    if len(rows) != len(dataset):
        raise EvaluationError(f"there are {len(rows)} embeddings for the {len(dataset)} images of {dataset.name}.")
    return _split_queries(rows, labels, dataset.factors["query"].astype(bool), f"{dataset.name} ({dataset.split}): ")


def _split_queries(rows: np.ndarray, labels: np.ndarray, asks: np.ndarray, where: str = "") -> dict[str, Any]:
    """Queries and gallery; asks: bool [n], which rows are queries. Raises `EvaluationError` where all or none are."""
    if asks.all() or not asks.any():
        raise EvaluationError(f"{where}some rows must be queries, and some the gallery that they search.")
    gallery = {"embeddings": rows[~asks], "labels": labels[~asks]}
    return {**gallery, "queries": rows[asks], "query_labels": labels[asks]}


def _check_queries(queries: Any, n: int) -> np.ndarray:
    """bool [n]. Raises `EvaluationError` for what is none."""
    asks = np.asarray(queries)
    if asks.shape != (n,) or asks.dtype != np.bool_:
        raise EvaluationError(
            f"queries must be true or false for each of the {n} rows, not {asks.dtype} of shape {list(asks.shape)}."
        )
    return asks


def protocol_name(dataset: Dataset | None) -> str:
    """Who searches what, as `searched` has it, in words."""
    return QUERY_GALLERY if dataset is not None and "query" in dataset.factors else PROTOCOL


def _evaluation(
    rows: np.ndarray,
    labels: Any,
    dataset: Dataset | None,
    k: Sequence[int],
    groups: Sequence[str],
    queries: Any = None,
) -> Evaluation:
    if queries is None:
        asked = search_arguments(rows, labels, dataset)
    else:
        n = len(rows)
        asked = _split_queries(rows, as_labels(labels, n), _check_queries(queries, n))
    measured = per_query(**asked, k=k)
    if "ranking" in groups:
        measured = replace(measured, values={**measured.values, **ranking_per_query(**asked).values})
    classes = len(np.unique(measured.classes))
    return Evaluation(
        model=None,
        dataset=dataset.name if dataset else None,
        split=dataset.split if dataset else None,
        protocol=QUERY_GALLERY if "queries" in asked else PROTOCOL,
        runtime=None,
        precision=None,
        dim=rows.shape[1],
        queries=len(measured.rows) + measured.without_relatives,
        queries_without_relatives=measured.without_relatives,
        classes=classes,
        metrics={**measured.means(), **embedding_metrics(groups, rows, labels)},
        intervals=bootstrap_intervals(measured.values, measured.classes) if classes > 1 else {},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=library_versions(),
    )
