"""Class-disjoint cross validation: one model per fold of the training classes, stopped by its fold (Reality).

Folders are SEARCH/LOSS/TRIAL for checkpoints and logs of a trial or a rerun; the results of all are in
SEARCH/results.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.checkpoint import check_embeddings
from training.data import TrainingData
from training.health.held_out import embed_pixels
from training.recipe import Recipe
from training.studies.results import Results
from training.studies.runner import StudyContext
from training.trainer import CHECKPOINT, Trained, fit
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.evaluate import protocol_name, search_arguments

METRICS = ("precision_at_1", "r_precision", "map_at_r")

KINDS = ("separated", "concatenated")
"""Scores of a rerun: the mean over its models, or that of their joined embeddings."""


@dataclass(frozen=True)
class CrossValidation:
    """Number of folds, and number of epochs without a better MAP@R on its fold after which a model's training ends.

    An epoch counts at the next validation (`schedule.validate_every` of the recipe).
    """

    folds: int = 4
    patience: int = 9


def folds(classes: int, count: int = 4) -> list[np.ndarray]:
    """Split the class numbers 0 to classes - 1 into `count` contiguous runs, int64, as equal in size as possible.

    With four folds, each is an eighth of the classes of a data set whose first half is trained on (Reality, section
    4.1).

    Raises:
        UsageError: If a fold would have fewer than two classes, or leave fewer than two.
    """
    if count < 2 or classes // count < 2:
        raise UsageError(
            f"{classes} training classes cannot be split into {count} folds of two or more classes. Give a smaller "
            "--folds, at least 2.",
            code="invalid-value",
        )
    return [part.astype(np.int64) for part in np.array_split(np.arange(classes), count)]


def hold_out(data: TrainingData, held_out: np.ndarray, labels: np.ndarray, pixels: np.ndarray) -> TrainingData:
    """Return training data with some classes held out for validation.

    Args:
        data: The data of all training classes, n squares.
        held_out: The class numbers to hold out.
        labels: int64 [n], the class number of each square.
        pixels: uint8 [n, crop, crop, c], the same images as networks take them.
    """
    validates = np.isin(labels, held_out)
    rows = np.flatnonzero(~validates)
    _, codes = np.unique(labels[rows], return_inverse=True)
    turned = (codes[:, None] * data.turns + np.arange(data.turns)).ravel().astype(np.int64)
    indices = torch.from_numpy(rows)
    return replace(
        data,
        squares=data.squares[indices],
        labels=turned,
        classes=int(turned.max()) + 1,
        validation=(pixels[validates], labels[validates]),
        aspects=None if data.aspects is None else data.aspects[indices],
        sources=[data.sources[row] for row in rows.tolist()] if data.sources else (),
    )


def cross_validate(recipe: Recipe, validation: CrossValidation, folder: Path, context: StudyContext) -> float:
    """Return the mean over folds of the best epoch's MAP@R on the fold. Finished folds are not repeated.

    Args:
        recipe: The recipe of a trial.
        validation: The folds.
        folder: The trial's folder.
        context: Where to train.

    Raises:
        DivergedError: If the values of the trial break its loss.
        UsageError: If the images differ from those of earlier folds.
    """
    records = [_train_fold(recipe, validation, number, folder, context) for number in range(validation.folds)]
    return float(np.mean([record["map_at_r"] for record in records]))


def rerun(recipe: Recipe, validation: CrossValidation, folder: Path, context: StudyContext) -> dict[str, Any]:
    """Train one model per fold and test all of them (Reality, section 4.1), unless the result exists.

    Queries and gallery are those of `zoo.evaluation.evaluate`.

    Args:
        recipe: The best recipe, with the seed of the rerun.
        validation: The folds.
        folder: The rerun's folder.
        context: Where to train and test.

    Returns:
        The result: "separated" is the mean of the models' scores, "concatenated" the scores of their joined embeddings
        of folds x dim numbers; "images" is the identity of the tested ones.

    Raises:
        DivergedError: If the values break the loss with this seed.
        UsageError: If the images or the test protocol differ from those of earlier results.
    """
    results, name = search_results(folder), result_name(folder)
    if name in results:
        return results[name]
    embeddings: list[np.ndarray] = []
    dataset = context.splits.dataset(recipe.data.dataset, "test")
    protocol = protocol_name(dataset)
    _check_protocol(protocol, results)

    def embed_test_images(trained: Trained) -> None:
        sizes = recipe.preprocessing
        pixels = context.splits.images(recipe.data.dataset, "test", sizes)
        embeddings.append(embed_pixels(trained.network.to(context.device), sizes, pixels, context.device))
        check_embeddings(embeddings[-1], f"the weights of fold {len(embeddings) - 1}")

    fold_records = [
        _train_fold(recipe, validation, number, folder, context, embed_test_images)
        for number in range(validation.folds)
    ]
    separated = [_scores(rows, dataset) for rows in embeddings]
    concatenated = _scores(np.concatenate(embeddings, axis=1), dataset)
    result = {
        "seed": recipe.seed,
        "validation_map_at_r": float(np.mean([record["map_at_r"] for record in fold_records])),
        "separated": {metric: float(np.mean([scores[metric] for scores in separated])) for metric in METRICS},
        "concatenated": {metric: concatenated[metric] for metric in METRICS},
        "dim": embeddings[0].shape[1],
        "protocol": protocol,
        "images": asdict(dataset.identity),
        "folds": fold_records,
        "date": _now(),
        **context.made_with,
    }
    results.add(name, result)
    _delete_checkpoints(folder)
    return result


def search_results(folder: Path) -> Results:
    """Return the results of the search that the folder SEARCH/LOSS/TRIAL belongs to."""
    return Results(folder.parents[1])


def result_name(folder: Path) -> str:
    """Return the name of a trial or a rerun among the results of its search: LOSS/TRIAL."""
    return f"{folder.parent.name}/{folder.name}"


def _train_fold(
    recipe: Recipe,
    validation: CrossValidation,
    number: int,
    folder: Path,
    context: StudyContext,
    use: Callable[[Trained], None] | None = None,
) -> dict[str, Any]:
    """Train the model of a fold, and return its best epoch and scores.

    With `use` the network itself is needed, which a finished fold takes from its checkpoint.
    """
    results, name = search_results(folder), f"{result_name(folder)}/fold-{number}"
    if use is None and name in results:
        return results[name]
    fold_folder = folder / f"fold-{number}"
    data, _ = context.setup.prepare(recipe)
    assert isinstance(data, TrainingData)  # spaces have no recipes on cached features
    _check_images(data.digest, folder.parent, results)
    split = context.splits.dataset(recipe.data.dataset, "train")
    pixels = context.splits.images(recipe.data.dataset, "train", recipe.preprocessing)
    held_out = folds(len(split.classes), validation.folds)[number]
    parts = hold_out(data, held_out, split.labels, pixels)
    ending = replace(recipe, schedule=replace(recipe.schedule, patience=validation.patience))
    trained = fit(ending, parts, fold_folder, context.setup.execution, progress=False)
    record = {"fold": number, "best_epoch": trained.best_epoch, "epochs": len(trained.log), **trained.validation}
    facts = {"data": data.digest, "seconds": trained.seconds, "log": trained.log, "date": _now()}
    if name not in results:
        results.add(name, {**record, **facts, **context.made_with})
    if use is None:
        _delete_checkpoints(fold_folder)
    else:
        use(trained)
    return record


def _scores(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    return retrieval_metrics(**search_arguments(rows, dataset.labels, dataset), k=(1,))


def _check_protocol(protocol: str, results: Results) -> None:
    """Raise `UsageError`, before any training, if other reruns were tested by another protocol."""
    for result in results.values():
        if "concatenated" in result and result["protocol"] != protocol:
            raise UsageError(
                f"{results.path.parent} holds reruns that were tested by another protocol: {result['protocol']}, "
                f"not {protocol}. A mean over both is meaningless: begin again in another folder (--out).",
                code="other-study",
            )


def _check_images(digest: str, loss_folder: Path, results: Results) -> None:
    """Raise `UsageError`, which does not fail a trial, if the other folds of the loss had other training data."""
    for name, result in results.items():
        if name.startswith(f"{loss_folder.name}/") and result.get("data", digest) != digest:
            raise UsageError(
                f"the images are not those that {loss_folder} was searched with: their digests are {digest} and "
                f"{result['data']}. Name the data that the search was begun with (--data), or begin again in another "
                "folder (--out).",
                code="other-study",
            )


def _delete_checkpoints(folder: Path) -> None:
    for checkpoint in folder.rglob(CHECKPOINT):
        checkpoint.unlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
