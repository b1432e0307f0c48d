"""The training loop: epochs of sampled batches, validation on held-out training classes, a checkpoint after each."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from training import state
from training.data import TrainingData
from training.log import Log
from training.memory import embed_features, embed_samples
from training.recipe import Recipe
from training.run import Run, embed, steps_per_epoch
from training.samplers import SAMPLERS, Sampler
from training.tables import make
from zoo.errors import TrainingError
from zoo.evaluation import retrieval_metrics
from zoo.network import Network

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"


@dataclass(frozen=True)
class Trained:
    """The network to publish and how it came about. `seconds`: spent in training and validation, over all resumes."""

    network: Network
    log: list[dict[str, Any]]
    best_epoch: int | None
    seconds: float
    resumed_at: int


def train(
    recipe: Recipe, data: TrainingData, folder: Path, device: torch.device, restart: bool = False, progress: bool = True
) -> Trained:
    """Train by the recipe, keeping checkpoint and log in `folder`, from which an interrupted run goes on.

    A run that is killed and started again has the log of one that was not (on one machine with the same libraries).
    """
    with exclusive(folder):
        if restart:
            for name in (CHECKPOINT, LOG):
                (folder / name).unlink(missing_ok=True)
        return _train(recipe, data, folder, device, progress)


def _train(recipe: Recipe, data: TrainingData, folder: Path, device: torch.device, progress: bool) -> Trained:
    sampler = create_sampler(recipe, data)
    steps = steps_per_epoch(recipe, data)
    run = Run(recipe, data.classes, steps * recipe.schedule.epochs, device, getattr(sampler, "memory", None))
    if (folder / CHECKPOINT).exists():
        run.restore(state.load(folder / CHECKPOINT))
    elif run.memory is not None:
        run.memory[:] = embed_samples(run, data)
    resumed_at = run.epoch
    log = Log(folder / LOG, keep=resumed_at)
    # A log file is spared the many lines that on a terminal are one.
    interval = 0.2 if sys.stderr.isatty() else 10
    total = steps * recipe.schedule.epochs
    with tqdm(total=total, initial=steps * resumed_at, disable=not progress, mininterval=interval) as bar:
        bar.set_description(recipe.name)
        show: Callable[[dict[str, Any]], None] = _display(bar, log)
        while run.epoch < recipe.schedule.epochs:
            log.write(_epoch(run, data, sampler.epoch(run.epoch, steps), show))
            state.save(run.to_state(), folder / CHECKPOINT)
    best_epoch = run.best["epoch"] if run.best else None
    return Trained(run.final(), log.records, best_epoch, sum(r["seconds"] for r in log.records), resumed_at)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Held by one process at a time; the lock goes with the process. Raises `TrainingError` where another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                f"another process trains this recipe already, in {folder}. Wait for it, or end it."
            ) from None
        yield


def _epoch(
    run: Run, data: TrainingData, batches: Iterable[np.ndarray], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Train one epoch, validate, keep what is best; the epoch's record for the log."""
    started = time.perf_counter()
    run.network.train()
    losses: list[Tensor] = []
    images = 0
    for indices in batches:
        loss, features = run.step(*data.batch(indices, run.device))
        if run.memory is not None:
            run.memory[indices] = embed_features(run, features)
        losses.append(loss)
        images += len(indices)
        show({"loss": loss})
    trained = time.perf_counter()
    run.epoch += 1
    validation = validate(run, data)
    if validation:
        run.keep_if_best(validation["map_at_r"])
    return {
        "epoch": run.epoch,
        "loss": torch.stack(losses).mean().item(),
        "lr": run.schedule.get_last_lr()[0],
        **{f"validation_{name}": value for name, value in validation.items()},
        "images_per_second": images / (trained - started),
        "seconds": time.perf_counter() - started,
    }


def validate(run: Run, data: TrainingData) -> dict[str, float]:
    """R@1 and MAP@R on the held-out training classes; empty where the recipe holds none out."""
    if data.validation is None:
        return {}
    pixels, labels = data.validation
    metrics = retrieval_metrics(embed(run.evaluated, run.recipe, pixels, run.device), labels, k=(1,))
    return {name: metrics[name] for name in ("recall_at_1", "map_at_r")}


def create_sampler(recipe: Recipe, data: TrainingData) -> Sampler:
    """The recipe's sampler. Raises `RecipeError` where the data cannot give such batches."""
    batch = recipe.batch
    offered = {"labels": data.labels, "size": batch.size, "per_class": batch.per_class, "seed": recipe.seed}
    sampler: Sampler = make(SAMPLERS, "sampler", batch.sampler, batch.args, {**offered, "dim": recipe.dim})
    return sampler


def _display(bar: Any, log: Log) -> Callable[[dict[str, Any]], None]:
    def show(step: dict[str, Any]) -> None:
        bar.update()
        # Reading the loss waits for an accelerator, so only now and then.
        if bar.n % 10 == 0:
            last = log.records[-1].get("validation_recall_at_1") if log.records else None
            facts = {"loss": f"{step['loss'].item():.3f}"}
            bar.set_postfix(facts if last is None else {**facts, "val R@1": f"{last:.3f}"}, refresh=False)

    return show
