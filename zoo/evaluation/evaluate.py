"""Evaluation of a model, or of embeddings, on a data set of unseen classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from zoo.console import note
from zoo.data import check_dataset, load_dataset
from zoo.data.content import count_identical_pairs
from zoo.data.dataset import BOTH, FOLDER, QUERY, DataIdentity, Dataset, identify, without
from zoo.data.formats import table_of
from zoo.data.table import is_own_table
from zoo.errors import DatasetError, EvaluationError, ImageError, UsageError, none_readable_message, unknown
from zoo.evaluation.clustering import clustering_metrics
from zoo.evaluation.inputs import as_labels, bounded_unit_rows
from zoo.evaluation.knn import as_rows, check_matrix
from zoo.evaluation.memory import Budget, parse_size, release_pages, require_memory
from zoo.evaluation.rerank.order import NONE, check_method
from zoo.evaluation.retrieval import (
    CLASS_MEANS,
    DEFAULT_K,
    PerQuery,
    check_depths,
    default_depths,
    per_query,
    per_query_of_parts,
    ranking_per_query,
)
from zoo.evaluation.split import dataset_to_measure, find_split, learnt_classes, read_whitened_classes
from zoo.evaluation.statistics import class_scores, intervals_over_classes
from zoo.evaluation.structure import structure_metrics
from zoo.evaluation.verification import verification_metrics
from zoo.models.load import Embedder, load
from zoo.models.registry import ModelLike
from zoo.models.results import Evaluation
from zoo.paths import library_versions

QUERY_GROUPS = ("retrieval", "ranking")
"""Groups of metrics that have a value for each query, and so an interval."""

EMBEDDING_GROUPS: dict[str, Callable[[Any, Any], dict[str, float]]] = {
    "clustering": clustering_metrics,
    "structure": structure_metrics,
    "verification": verification_metrics,
}
"""Groups of metrics that are measured on all embeddings [n, d] with their labels [n] at once."""

GROUPS = (*QUERY_GROUPS, *EMBEDDING_GROUPS)

METRICS = ("recall_at_1", "map_at_r")
"""Metrics that compare models."""

PROTOCOL = "leave-one-out, cosine, exact"
QUERY_GALLERY = "queries to gallery, cosine, exact"


def evaluate(
    model: ModelLike | np.ndarray,
    dataset: Any = None,
    split: str = "test",
    data: Any = None,
    labels: Any = None,
    k: Sequence[int] | None = None,
    batch_size: int = 64,
    progress: bool = False,
    metrics: str | Sequence[str] = "retrieval",
    unreadable: MutableMapping[str, ImageError] | None = None,
    queries: Any = None,
    memory: int | str | None = None,
    rerank: str = NONE,
) -> Evaluation:
    """Measure the retrieval of a model or of embeddings on a data set, with 95 % intervals over classes.

    Each image searches all others. If the data set has the factor `query`, its queries search its gallery and no other
    image searches.

    Args:
        model: A loaded model; a name, a path or the result of a training, which are loaded; or embeddings [n, dim].
        dataset: The name of a data set, or a loaded one (of this package, of the library `datasets` or of PyTorch); by
            default the one that the model was trained for, or the images `data` if this package lacks that one, or if
            they are a table.
        split: "train" or "test". For a folder without these parts they are the classes that the model's recipe.json
            lists as learnt and as held out, where the folder holds them, and "all" is the whole folder.
        data: The folder of the data set (default: `ZOO_DATA`, else the download cache); your own images as `zoo.train`
            takes them.
        labels: The labels [n] of plain embeddings, instead of a data set.
        k: The K of recall_at_K (default: those of 1, 2, 4 and 8 for which each query has enough neighbours).
        batch_size: Images per batch.
        progress: Show a progress bar.
        metrics: Groups to add to retrieval, which is always measured: ranking, clustering, structure, verification, or
            "all" (`zoo.evaluation` lists their keys). The last three include queries and gallery alike and have no
            intervals.
        unreadable: Receives, by source, the errors of the images of a folder or table that cannot be read. They are
            left out, and the evaluation says how many there were. Without this argument each one is a warning.
        queries: Bool [n], for plain embeddings with labels: the rows that search; the others are the gallery.
        memory: The largest resident set of the process, as "2GiB" or in bytes, for plain embeddings. The requirement
            is printed on stderr in advance. The unit rows are then in a temporary file, the search runs on the
            processor, and embeddings that are memory-mapped (`np.load(..., mmap_mode="r")`) need not fit the memory.
            The scores are the same.
        rerank: One of `zoo.evaluation.rerank.order.METHODS`, which order the neighbours of each query without labels;
            the protocol names it. Only for the group retrieval, and without `memory`.

    Raises:
        UsageError: If a group of metrics or a re-ranking is unknown, or the arguments exclude one another.
        EvaluationError: If the evaluation does not fit the memory (code "too-large").
        ImageError: If no image of a folder can be read, or one image of another data set cannot.
        ZooError: As `zoo.load`, `zoo.data.load_dataset`, `retrieval_metrics` and the functions of the groups.
    """
    groups, k = parse_groups(metrics), None if k is None else check_depths(k)
    limit = None if memory is None else parse_size(memory)
    check_reranking(rerank, groups, limit)
    dataset, data = _named_data(dataset, data, labels is None)
    if dataset is not None and not isinstance(dataset, Dataset):
        check_dataset(dataset, split, data)  # before a model is loaded or a network runs in vain
    if isinstance(model, str | os.PathLike) or isinstance(getattr(model, "folder", None), Path):
        model = model if isinstance(model, Embedder) else load(cast("ModelLike", model))
    if isinstance(model, Embedder):
        if limit is not None:
            raise UsageError(
                "a memory limit is for embeddings, since the memory of a network is not known in advance. Write them "
                "with zoo embed, and measure the file with zoo score --memory.",
                code="conflicting-options",
            )
        if labels is not None or queries is not None:
            raise UsageError(
                "labels and queries belong to plain embeddings; a model is measured on a data set, which has its own.",
                code="conflicting-options",
            )
        loaded = _load_dataset(dataset or dataset_to_measure(model.folder, model.card, data), split, data, model)
        errors = {} if unreadable is None else unreadable
        rows, measured = embed_dataset(model, loaded, batch_size, progress, errors)
        for error in errors.values() if unreadable is None else ():
            warnings.warn(f"left out: {error}", stacklevel=2)
        evaluation = attribute_to_model(
            _evaluate_rows(rows, measured.labels, measured, k, groups, rerank=rerank), model
        )
        whitening = read_whitened_classes(model.folder)
        fitted = len(whitening.among_classes(measured).by_images) if whitening.digests else None
        learnt = learnt_classes(model.folder).among_classes(measured).learnt if _is_own_test(measured) else ()
        return replace(
            evaluation,
            unreadable=len(loaded) - len(measured),
            whitened_classes=fitted,
            learnt_classes=len(learnt) or None,
        )
    if (labels is None) == (dataset is None):
        raise UsageError(
            "embeddings are measured against labels or a data set: give one of the two.", code="conflicting-options"
        )
    if dataset is None:
        return _evaluate_embeddings(model, labels, None, k, groups, queries, limit, rerank)
    if queries is not None:
        raise UsageError("queries belong to labels; a data set defines its own.", code="conflicting-options")
    loaded = _load_dataset(dataset, split, data)
    return _evaluate_embeddings(model, loaded.labels, loaded, k, groups, None, limit, rerank)


def _named_data(dataset: Any, data: Any, needed: bool) -> tuple[str | Dataset | None, str | Path | None]:
    """Return a data set by its name or as a value, and the path of its files; a table means the data set "folder"."""
    if hasattr(dataset, "dtype"):
        raise DatasetError(
            f"a data set is a name or a value, not an array ({type(dataset).__name__}); labels are given as labels=.",
            code="invalid-value",
        )
    if not isinstance(dataset, str | os.PathLike | Dataset | None):
        return FOLDER, table_of(dataset)
    path = table_of(data)
    is_own = needed and dataset is None and is_own_table(path)
    return FOLDER if is_own else cast("str | Dataset | None", dataset), path


def parse_groups(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the named groups of metrics, each once and in the order of `GROUPS`; "all" means all of them.

    Raises:
        UsageError: If a name is unknown.
    """
    requested = {names} if isinstance(names, str) else set(names)
    for name in sorted(requested - {*GROUPS, "all"}):
        raise unknown("group of metrics", name, (*GROUPS, "all"))
    return GROUPS if "all" in requested else tuple(group for group in GROUPS if group in requested)


def check_reranking(method: str, groups: Sequence[str], limit: object = None) -> None:
    """Check a re-ranking, of which only the metrics of the group retrieval know, and no limit of memory.

    Raises:
        UsageError: If there is no such method, or other groups are to be measured with it, or within a limit.
    """
    if check_method(method) != NONE and limit is not None:
        raise UsageError(
            "the memory of re-ranking is not predicted; measure it without a limit of memory.",
            code="conflicting-options",
        )
    others = [group for group in groups if group != "retrieval"]
    if check_method(method) != NONE and others:
        raise UsageError(
            f"re-ranking changes the metrics of the group retrieval only; measure {', '.join(others)} without it.",
            code="conflicting-options",
        )


def _embedding_metrics(groups: Iterable[str], embeddings: Any, labels: Any) -> dict[str, float]:
    """Return the metrics of those groups that are measured on all embeddings at once."""
    values: dict[str, float] = {}
    for group in groups:
        if group in EMBEDDING_GROUPS:
            values |= EMBEDDING_GROUPS[group](embeddings, labels)
    return values


def attribute_to_model(evaluation: Evaluation, model: Embedder) -> Evaluation:
    """Return the evaluation of rows as an evaluation of the model that gave them."""
    return replace(
        evaluation,
        model=model.card.name,
        fingerprint=model.card.fingerprint,
        runtime=model.runtime,
        precision=model.precision,
        versions=library_versions(model.runtime),
    )


def embed_dataset(
    model: Embedder, dataset: Dataset, batch_size: int, progress: bool, unreadable: MutableMapping[str, ImageError]
) -> tuple[np.ndarray, Dataset]:
    """Embed a data set, leaving out the images of a folder that cannot be read.

    A published data set would become another one without an image, so there an unreadable image is an error.

    Args:
        model: The model.
        dataset: The images to embed.
        batch_size: Images per batch.
        progress: Whether to show a progress bar.
        unreadable: Receives the errors of the images that are left out, by source.

    Returns:
        Rows float32 [n, dim], and the data set of the n images.

    Raises:
        ImageError: If no image of a folder can be read, or one image of another data set cannot.
    """
    if dataset.name != FOLDER:
        return model.embed(dataset.images, batch_size, progress), dataset
    rows, errors = model.embed_readable(dataset.images, batch_size, progress)
    if not errors:
        return rows, dataset
    by_source = {dataset.sources[row]: error for row, error in errors.items()}
    unreadable.update(by_source)
    if not len(rows):
        raise ImageError(none_readable_message(len(dataset), next(iter(errors.values()))), code="no-images")
    return rows, without(dataset, by_source)


def search_arguments(
    rows: np.ndarray, labels: Any, dataset: Dataset | None, budget: Budget | None = None
) -> dict[str, Any]:
    """Return the arguments of `per_query`: all rows, or queries and gallery where the data set separates them.

    With a budget of memory the rows become `BoundedRows`.
    """
    if dataset is None or QUERY not in dataset.factors:
        return {"embeddings": rows if budget is None else bounded_unit_rows(rows, budget), "labels": labels}
    if len(rows) != len(dataset):
        raise EvaluationError(
            f"there are {len(rows)} embeddings for the {len(dataset)} images of {dataset.name}.",
            code="invalid-embedding",
        )
    prefix = f"{dataset.name} ({dataset.split}): "
    if has_both(dataset):
        raise EvaluationError(
            f"{prefix}some queries are in the gallery that they search, which zoo.evaluate alone measures.",
            code="not-available",
        )
    return _split_queries(rows, labels, dataset.factors[QUERY].astype(bool), prefix, budget)


def has_both(dataset: Dataset | None) -> bool:
    """Return whether some queries of a data set are also in the gallery that they search."""
    return dataset is not None and QUERY in dataset.factors and bool((dataset.factors[QUERY] == BOTH).any())


def protocol_name(dataset: Dataset | None) -> str:
    """Return the name of the search protocol that `search_arguments` gives for the data set."""
    return QUERY_GALLERY if dataset is not None and QUERY in dataset.factors else PROTOCOL


def _is_own_test(dataset: Dataset) -> bool:
    """Return whether images are a user's own to measure on, which may hold classes that the model has learnt."""
    return dataset.name == FOLDER and dataset.split != "train"


def _load_dataset(
    dataset: str | Dataset, split: str, data: str | Path | None, model: Embedder | None = None
) -> Dataset:
    if isinstance(dataset, Dataset):
        return dataset
    if model is None:
        return load_dataset(dataset, split, data)
    return find_split(model.folder, model.card, dataset, split, data).dataset


def _split_queries(
    rows: np.ndarray, labels: np.ndarray, queries: np.ndarray, prefix: str = "", budget: Budget | None = None
) -> dict[str, Any]:
    """Return the arguments of `per_query` for rows of which some, bool [n], are queries."""
    if queries.all() or not queries.any():
        raise EvaluationError(f"{prefix}some rows must be queries, and some the gallery that they search.")

    def part(chosen: np.ndarray) -> np.ndarray:
        return rows[chosen] if budget is None else bounded_unit_rows(rows, budget, chosen)

    gallery = {"embeddings": part(~queries), "labels": labels[~queries]}
    return {**gallery, "queries": part(queries), "query_labels": labels[queries]}


def _evaluate_embeddings(
    values: Any,
    labels: Any,
    dataset: Dataset | None,
    k: Sequence[int] | None,
    groups: Sequence[str],
    queries: Any,
    limit: int | None,
    rerank: str,
) -> Evaluation:
    """Measure plain embeddings [n, d], under a limit of memory in bytes if there is one."""
    if limit is None:
        return _evaluate_rows(as_rows(values, "embeddings"), labels, dataset, k, groups, queries, rerank=rerank)
    rows = check_matrix(values, "embeddings")
    n, dim = rows.shape
    labels = as_labels(labels, n)
    searching = dataset.factors[QUERY].astype(bool) if dataset and QUERY in dataset.factors else queries
    if searching is not None:
        searching = _check_queries(searching, n)
    release_pages(values)
    number = 0 if searching is None else int(np.count_nonzero(searching))
    requirement = require_memory(limit, n, dim, labels, groups, DEFAULT_K if k is None else k, number)
    note(requirement.text)
    return _evaluate_rows(values, labels, dataset, k, groups, queries, requirement.budget)


def _check_queries(queries: Any, n: int) -> np.ndarray:
    values = np.asarray(queries)
    if values.shape != (n,) or values.dtype != np.bool_:
        raise EvaluationError(
            f"queries must be true or false for each of the {n} rows, not {values.dtype} of shape "
            f"{list(values.shape)}.",
            code="invalid-value",
        )
    return values


def _evaluate_rows(
    rows: np.ndarray,
    labels: Any,
    dataset: Dataset | None,
    k: Sequence[int] | None,
    groups: Sequence[str],
    queries: Any = None,
    budget: Budget | None = None,
    rerank: str = NONE,
) -> Evaluation:
    if has_both(dataset):
        return _evaluate_parts(rows, cast("Dataset", dataset), k, groups, budget, rerank)
    if queries is None:
        arguments = search_arguments(rows, labels, dataset, budget)
    else:
        n = len(rows)
        arguments = _split_queries(rows, as_labels(labels, n), _check_queries(queries, n), budget=budget)
    if budget is not None and "queries" not in arguments:
        rows = arguments["embeddings"]
    elif budget is not None and not set(groups).isdisjoint(EMBEDDING_GROUPS):
        rows = bounded_unit_rows(rows, budget)
    if k is None:
        k = default_depths(len(arguments["embeddings"]) - ("queries" not in arguments))
    scores = per_query(**arguments, k=k, rerank=rerank)
    if "ranking" in groups:
        scores = replace(scores, values={**scores.values, **ranking_per_query(**arguments).values})
    query_labels = np.asarray(arguments.get("query_labels", labels))[scores.rows]
    protocol = _protocol("queries" in arguments, rerank)
    return _build_evaluation(rows, labels, dataset, groups, scores, query_labels, protocol, queries)


def _evaluate_parts(
    rows: np.ndarray,
    dataset: Dataset,
    k: Sequence[int] | None,
    groups: Sequence[str],
    budget: Budget | None,
    rerank: str,
) -> Evaluation:
    """Measure rows of which some are queries and in the gallery that they search."""
    if budget is not None:
        raise UsageError(
            "a limit of memory is not for queries that are in the gallery that they search.", code="conflicting-options"
        )
    labels, parts = dataset.labels, dataset.factors[QUERY]
    if k is None:
        k = default_depths(int((parts != 1).sum()) - 1)
    scores = per_query_of_parts(rows, labels, parts, partial(per_query, k=k, rerank=rerank))
    if "ranking" in groups:
        ranking = per_query_of_parts(rows, labels, parts, ranking_per_query)
        scores = replace(scores, values={**scores.values, **ranking.values})
    return _build_evaluation(rows, labels, dataset, groups, scores, labels[scores.rows], _protocol(True, rerank))


def _build_evaluation(
    rows: np.ndarray,
    labels: Any,
    dataset: Dataset | None,
    groups: Sequence[str],
    scores: PerQuery,
    query_labels: np.ndarray,
    protocol: str,
    queries: Any = None,
) -> Evaluation:
    over_queries = {name: values for name, values in scores.values.items() if name not in CLASS_MEANS}
    classes = len(np.unique(scores.classes))
    names = [dataset.classes[label] for label in query_labels] if dataset else query_labels.astype(str)
    return Evaluation(
        model=None,
        dataset=dataset.name if dataset else None,
        split=dataset.split if dataset else None,
        protocol=protocol,
        runtime=None,
        precision=None,
        dim=int(np.shape(rows)[1]),
        queries=len(scores.rows) + scores.without_relatives,
        queries_without_relatives=scores.without_relatives,
        classes=classes,
        metrics={**scores.means(), **_embedding_metrics(groups, rows, labels)},
        intervals=intervals_over_classes(over_queries, scores.classes) if classes > 1 else {},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=library_versions(),
        data=dataset.identity if dataset else _identify_labels(as_labels(labels, len(rows)), queries),
        class_scores=class_scores(scores.values, names, METRICS),
        identical=count_identical_pairs(dataset) if dataset is not None and dataset.name == FOLDER else None,
    )


def _protocol(searches_gallery: bool, rerank: str) -> str:
    """Return the name of a protocol with its re-ranking."""
    protocol = QUERY_GALLERY if searches_gallery else PROTOCOL
    return protocol if rerank == NONE else f"{protocol}, re-ranked by {rerank}"


def _identify_labels(labels: np.ndarray, queries: Any) -> DataIdentity:
    """Return the identity of rows that are known by their labels [n] and marks of queries, bool [n] or None, alone."""
    marks = None if queries is None else np.asarray(queries).tolist()
    return identify("labels", list(map(str, range(len(labels)))), labels.tolist(), marks)
