"""One set of values under cross validation: a model a fold, each stopped by its own quarter of the training classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from training.data import TrainingData
from training.failures import check_directions
from training.loop import CHECKPOINT, Trained, fit
from training.recipe import Recipe
from training.run import embed
from training.studies.folds import folds, without
from training.studies.results_file import Results
from training.studies.single import Workplace
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.evaluate import PROTOCOL, protocol_of, searched

METRICS = ("precision_at_1", "r_precision", "map_at_r")


@dataclass(frozen=True)
class Validation:
    """How many folds, and after how many epochs without a better MAP@R on its fold a model's training ends."""

    folds: int = 4
    patience: int = 9


def validate(recipe: Recipe, how: Validation, folder: Path, work: Workplace) -> float:
    """The mean over folds of the best epoch's MAP@R on the fold. Finished folds in `folder` are not repeated.

    folder: SEARCH/LOSS/TRIAL, for checkpoints and logs; the results of all trials are in SEARCH/results.jsonl.
    """
    return float(np.mean([_fold(recipe, how, number, folder, work)["map_at_r"] for number in range(how.folds)]))


def results_of(folder: Path) -> Results:
    """Return the results of the search that `folder` (SEARCH/LOSS/TRIAL) belongs to."""
    return Results(folder.parents[1])


def name_of(folder: Path) -> str:
    """Return the name of a trial or a rerun among the results of its search: LOSS/TRIAL."""
    return f"{folder.parent.name}/{folder.name}"


def rerun(recipe: Recipe, how: Validation, folder: Path, work: Workplace) -> dict[str, Any]:
    """Train the folds' models and test them; separated: the mean of their scores; concatenated: of their embeddings,
    joined and so of folds x dim numbers (Reality, section 4.1). Who searches what is as in `zoo.evaluation.evaluate`.
    """
    results = results_of(folder)
    if name_of(folder) in results:
        return results[name_of(folder)]
    rows = []
    name, preprocessing = recipe.data.dataset, recipe.preprocessing
    known = work.splits.dataset(name, "test")
    protocol = _same_protocol(protocol_of(known), results)

    def test(trained: Trained) -> None:
        pixels = work.splits.images(name, "test", preprocessing)
        rows.append(embed(trained.network.to(work.device), recipe, pixels, work.device))
        check_directions(rows[-1], f"the weights of fold {len(rows) - 1}")

    kept = [_fold(recipe, how, number, folder, work, test) for number in range(how.folds)]
    alone = [_scores(each, known) for each in rows]
    joined = _scores(np.concatenate(rows, axis=1), known)
    result = {
        "seed": recipe.seed,
        "validation_map_at_r": float(np.mean([each["map_at_r"] for each in kept])),
        "separated": {metric: float(np.mean([scores[metric] for scores in alone])) for metric in METRICS},
        "concatenated": {metric: joined[metric] for metric in METRICS},
        "protocol": protocol,
        "folds": kept,
        "date": _now(),
        **work.made_with,
    }
    results.add(name_of(folder), result)
    _tidy(folder)
    return result


def _scores(rows: np.ndarray, dataset: Dataset) -> dict[str, float]:
    return retrieval_metrics(**searched(rows, dataset.labels, dataset), k=(1,))


def protocol_of_rerun(result: Mapping[str, Any]) -> str:
    """How a rerun was tested; versions that wrote nothing of it let every image search all others."""
    return str(result.get("protocol", PROTOCOL))


def _same_protocol(protocol: str, results: Results) -> str:
    """The protocol; `UsageError`, before anything is trained for it, where other reruns were tested by another."""
    protocols = (protocol_of_rerun(result) for result in results.values() if "concatenated" in result)
    other = next((tested for tested in protocols if tested != protocol), None)
    if other is not None:
        raise UsageError(
            f"{results.path.parent} holds reruns that were tested by another protocol: {other}, not {protocol}. A mean "
            "over both would be of nothing: begin anew in another folder (--out)."
        )
    return protocol


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _fold(
    recipe: Recipe,
    how: Validation,
    number: int,
    folder: Path,
    work: Workplace,
    use: Callable[[Trained], None] | None = None,
) -> dict[str, Any]:
    """One fold's model: its best epoch and scores. With `use` the network is wanted, and comes from its checkpoint."""
    results, name = results_of(folder), f"{name_of(folder)}/fold-{number}"
    if use is None and name in results:
        return results[name]
    place = folder / f"fold-{number}"
    data, _ = work.setup.prepare(recipe)
    assert isinstance(data, TrainingData)  # spaces have no recipes on cached features
    digest = _same(data.digest, folder.parent, results)
    split = work.splits.dataset(recipe.data.dataset, "train")
    pixels = work.splits.images(recipe.data.dataset, "train", recipe.preprocessing)
    held_out = folds(len(split.classes), how.folds)[number]
    parts = without(data, held_out, split.labels, pixels)
    trained = fit(recipe, parts, place, work.setup.place, progress=False, patience=how.patience)
    assert trained.best_epoch is not None  # a fold is always validated, and epochs are at least one
    record = trained.log[trained.best_epoch - 1]
    scores = {metric: record[f"validation_{metric}"] for metric in ("recall_at_1", "map_at_r")}
    result = {"fold": number, "best_epoch": trained.best_epoch, "epochs": len(trained.log), **scores}
    facts = {"data": digest, "seconds": trained.seconds, "log": trained.log, "date": _now(), **work.made_with}
    if name not in results:  # else only its network was wanted again
        results.add(name, {**result, **facts})
    if use is None:
        _tidy(place)
    else:
        use(trained)
    return result


def _same(digest: str, folder: Path, results: Results) -> str:
    """The digest of the training data; `UsageError`, which is no failure of a trial, where other folds had others.

    folder: SEARCH/LOSS.
    """
    trained = (result for name, result in results.items() if name.startswith(f"{folder.name}/") and "data" in result)
    other = next((result["data"] for result in trained), digest)
    if other != digest:
        raise UsageError(
            f"the images are others than those that {folder} was searched with: their digests are {digest} "
            f"and {other}. Name the data that the search was begun with (--data), or begin anew in another folder."
        )
    return digest


def _tidy(folder: Path) -> None:
    for checkpoint in folder.rglob(CHECKPOINT):
        checkpoint.unlink()
