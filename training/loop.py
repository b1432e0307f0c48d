"""The training loop: epochs of sampled batches, validation on held-out training classes, a checkpoint after each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import state
from training.failures import check_directions, keep_bad_batch
from training.frozen.data import CachedData, Samples
from training.log import Log
from training.memory import embed_features, observe
from training.methods.base import Minibatch
from training.prefetch import prefetch
from training.progress import Progress
from training.recipe import Recipe
from training.run import Place, Trainer, embed, embed_cached, steps_per_epoch
from training.samplers import Sampler
from training.samplers.create import create_sampler
from training.trackers import Tracker
from zoo.errors import RecipeError, TrainingError
from zoo.evaluation import retrieval_metrics
from zoo.files import LockHeldError, locked
from zoo.models.network import Network

CHECKPOINT, LOG, LOCK = "checkpoint.safetensors", "log.jsonl", "lock"
Draw = tuple[str, np.ndarray]
"""A step's task and its samples int64 [b]."""


@dataclass(frozen=True)
class Trained:
    """The network to publish and how it came about. `seconds`: spent in training and validation, over all resumes.

    precision: that was computed in. checkpoint: the file of the last epoch's state.
    """

    network: Network
    log: list[dict[str, Any]]
    best_epoch: int | None
    seconds: float
    resumed_at: int
    precision: str
    checkpoint: Path


def fit(
    recipe: Recipe,
    data: Samples,
    folder: Path,
    place: Place,
    restart: bool = False,
    progress: bool = True,
    trackers: tuple[Tracker, ...] = (),
    patience: int = 0,
    sampler: Sampler | None = None,
) -> Trained:
    """Train by the recipe, keeping checkpoint and log in `folder`, from which an interrupted run goes on.

    A run that is killed and started again has the log of one that was not (on one machine with the same libraries).

    Args:
        recipe: the recipe.
        data: the training samples.
        folder: where the checkpoint and the log are kept.
        place: the device and the processes.
        restart: forget checkpoint and log of an interrupted run.
        progress: show a progress bar.
        trackers: receive each epoch's record.
        patience: end after this many epochs without a better validation (Reality, section 4); 0: never end early.
        sampler: draws the batches by the labels of `data` (default: the recipe's).

    Raises:
        TrainingError: if another process trains in `folder`, a loss is not finite or a checkpoint cannot be written.
        RecipeError: if the parts of the recipe do not fit.
    """
    processes = place.processes
    with ExitStack() as stack:
        if processes.first:
            stack.enter_context(exclusive(folder))
            if restart:
                for name in (CHECKPOINT, LOG):
                    (folder / name).unlink(missing_ok=True)
        processes.wait()
        sampler = create_sampler(recipe, data.labels) if sampler is None else sampler
        return _fit(recipe, data, sampler, folder, place, progress and processes.first, trackers, patience)


def _fit(
    recipe: Recipe,
    data: Samples,
    sampler: Sampler,
    folder: Path,
    place: Place,
    progress: bool,
    trackers: tuple[Tracker, ...],
    patience: int,
) -> Trained:
    steps = steps_per_epoch(recipe, data)
    updates = math.ceil(steps / recipe.optimizer.accumulate)
    run = Trainer(recipe, data, updates, place, getattr(sampler, "memory", None))
    if (folder / CHECKPOINT).exists():
        run.restore(state.load(folder / CHECKPOINT))
    elif run.memory is not None:
        run.memory[:] = embed_features(run, observe(run))
    resumed_at = run.epoch
    log = Log(folder / LOG, keep=resumed_at, writes=place.processes.first)
    with Progress(recipe.name, steps * recipe.schedule.epochs, steps * resumed_at, recipe.batch.size, progress) as bar:
        while run.epoch < recipe.schedule.epochs and not _is_exhausted(run, patience):
            record = _epoch(run, sampler, steps, bar, folder)
            log.write(record)
            for tracker in trackers:
                tracker.write(record)
            if place.processes.first:
                _keep(run, folder)
    best_epoch = run.best["epoch"] if run.best else None
    seconds = sum(record["seconds"] for record in log.records)
    return Trained(run.final(), log.records, best_epoch, seconds, resumed_at, run.precision, folder / CHECKPOINT)


def _is_exhausted(run: Trainer, patience: int) -> bool:
    """Whether the last `patience` epochs were no better than one before; the checkpoint knows, so a resumed run too."""
    return bool(patience and run.best and run.epoch - run.best["epoch"] >= patience)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Held by one process at a time; the lock goes with the process. Raises `TrainingError` where another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).touch()
    try:
        with locked(folder / LOCK, wait=False):
            yield
    except LockHeldError:
        raise TrainingError(
            f"another process trains this recipe already, in {folder}. Wait for it, or end it."
        ) from None


def _epoch(run: Trainer, sampler: Sampler, steps: int, bar: Progress, folder: Path) -> dict[str, Any]:
    """Train one epoch, validate, keep what is best; the epoch's record for the log."""
    started = time.perf_counter()
    run.forwards = 0
    run.method.start_epoch(run.epoch, lambda: observe(run))
    # Clusters and queues are found by each process; rounding on unlike devices must not part them.
    run.place.processes.same_everywhere(run.method.buffers())
    run.network.train()
    run.method.train()
    part = run.place.processes.part(run.recipe.batch.size)
    # A sampler that follows the embeddings must not draw ahead of them.
    ahead = 0 if run.memory is not None else 2
    drawn = _draws(run, sampler, steps)
    history: list[dict[str, Tensor]] = []
    for number, ((task, samples), squares) in enumerate(
        prefetch(drawn, lambda draw: _pinned(run.data.images(draw[1][part]), run.place), ahead), start=1
    ):
        batch = run.minibatch(samples, squares, task)
        together = _together(number, steps, run.recipe.optimizer.accumulate)
        terms = _gradients(run, batch, folder, number, together)
        if number % run.recipe.optimizer.accumulate == 0 or number == steps:
            run.update()
        run.method.end_step(batch)
        if run.memory is not None:
            run.memory[samples] = embed_features(run, batch.features.detach())
        history.append(terms)
        bar.step(terms)
    trained = time.perf_counter()
    run.place.processes.same_everywhere(run.network.buffers())
    run.epoch += 1
    validation = validate(run)
    if validation:
        run.keep_if_best(validation["map_at_r"])
    bar.validated(validation)
    return {
        "epoch": run.epoch,
        **_means(history),
        "lr": run.schedule.get_last_lr()[0],
        **{f"validation_{name}": value for name, value in validation.items()},
        "images_per_second": steps * run.recipe.batch.size / (trained - started),
        "seconds": time.perf_counter() - started,
    }


def _pinned(squares: Tensor, place: Place) -> Tensor:
    """In memory from which the accelerator copies while it computes."""
    return squares.pin_memory() if place.device.type == "cuda" else squares


def _together(number: int, steps: int, accumulate: int) -> int:
    """How many batches make the update that step `number` (from 1) belongs to: the last may be of fewer."""
    complete = steps - steps % accumulate
    return accumulate if number <= complete else steps - complete


def _gradients(run: Trainer, batch: Minibatch, folder: Path, number: int, together: int) -> dict[str, Tensor]:
    """Forward and backward of one of the `together` batches of an update; the loss's terms.

    Raises `TrainingError` where their sum is not finite.
    """
    terms = run.method.loss(batch)
    loss = torch.stack(list(terms.values())).sum()
    if not torch.isfinite(loss):
        raise keep_bad_batch(run, batch, terms, folder, number)
    run.backward(loss, together)
    return {name: term.detach() for name, term in terms.items()}


def _draws(run: Trainer, sampler: Sampler, steps: int) -> Iterator[Draw]:
    """The task and samples of each step. Tasks that draw by the classes share one stream of batches."""
    plan, labels = run.method.plan(run.epoch, steps), run.data.labels
    targets = {task: run.method.targets(task, labels) for task in sorted(set(plan))}
    main = sampler.epoch(run.epoch, sum(targets[task] is labels for task in plan))
    if run.memory is not None and any(own is not labels for own in targets.values()):
        raise RecipeError(
            f"the sampler {run.recipe.batch.sampler!r} chooses by embeddings among the classes; the method "
            f"{run.recipe.objective.method!r} also draws by groups of its own. Set batch.sampler to spc."
        )
    streams = {
        task: main if own is labels else create_sampler(run.recipe, own, 1).epoch(run.epoch, plan.count(task))
        for task, own in targets.items()
    }
    for task in plan:
        samples = next(streams[task])
        yield task, samples if run.memory is None else run.place.processes.agree(samples, run.place.device)


def _means(history: list[dict[str, Tensor]]) -> dict[str, Any]:
    """The mean loss and, where it has several terms, the mean of each over the steps that had it."""
    loss = torch.stack([torch.stack(list(terms.values())).sum() for terms in history]).mean().item()
    names = {name for terms in history for name in terms}
    if len(names) == 1:
        return {"loss": loss}
    means = {n: torch.stack([terms[n] for terms in history if n in terms]).mean().item() for n in sorted(names)}
    return {"loss": loss, "terms": means}


def _keep(run: Trainer, folder: Path) -> None:
    """Write the checkpoint; the one before stays where this fails."""
    try:
        state.save(run.to_state(), folder / CHECKPOINT)
    except Exception as error:  # OSError, and safetensors' own type for what the system refused
        raise TrainingError(
            f"the checkpoint of epoch {run.epoch} cannot be written to {folder} ({error}). That of the epoch before is "
            "kept: make room and give the same command to go on."
        ) from None


def validate(run: Trainer) -> dict[str, float]:
    """R@1 and MAP@R on the held-out training classes; empty where the recipe holds none out.

    Raises `DivergedError` where the weights give no embeddings any more.
    """
    if run.data.validation is None:
        return {}
    inputs, labels = run.data.validation
    if isinstance(run.data, CachedData):
        rows = embed_cached(run.evaluated, inputs, run.place.device)
    else:
        rows = embed(run.evaluated, run.recipe, inputs, run.place.device)
    check_directions(rows, f"the weights after epoch {run.epoch}")
    metrics = retrieval_metrics(rows, labels, k=(1,))
    return {name: metrics[name] for name in ("recall_at_1", "map_at_r")}
