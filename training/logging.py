"""Records of a training run: log.jsonl, the progress bar, TensorBoard, trackio and Weights & Biases."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tqdm.auto import tqdm

from training.recipe import Recipe
from zoo.errors import MissingDependencyError, TrainingError, unknown
from zoo.files import write_bytes
from zoo.render import flatten_numbers

if TYPE_CHECKING:
    from torch import Tensor


class Log:
    """A JSON-lines file of one record per epoch.

    Args:
        path: The file.
        keep: The last epoch of the run that continues; later lines are dropped.
        writes: False leaves the file to another process and keeps the records in memory only.
    """

    def __init__(self, path: Path, keep: int = 0, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() and keep else []
        # A kill between log and checkpoint leaves a line, maybe cut off, of an epoch that will be trained again.
        records: list[dict[str, Any]] = [json.loads(line) for line in lines[:keep]]
        self.records = [record for record in records if record["epoch"] <= keep]
        if writes:
            write_bytes(path, "".join(json.dumps(record) + "\n" for record in self.records).encode())

    def write(self, record: dict[str, Any]) -> None:
        """Append an epoch's record.

        Raises:
            TrainingError: If the file cannot be written.
        """
        self.records.append(record)
        if not self.writes:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TrainingError(
                f"the line of epoch {record['epoch']} cannot be written to {self.path} ({error}). An earlier "
                "checkpoint is kept: free some space and give the same command to continue.",
                code="not-writable",
            ) from None


class ProgressBar:
    """A progress bar over `total` steps of `batch_size` images, `done` of which were taken before."""

    def __init__(self, name: str, total: int, done: int, batch_size: int, shown: bool = True) -> None:
        # In a log file every update of the bar is a line.
        interval = 0.2 if sys.stderr.isatty() else 10
        self.bar = tqdm(total=total, initial=done, disable=not shown, mininterval=interval, desc=name, unit="step")
        self.batch_size, self.last = batch_size, ""
        self.since, self.steps = time.perf_counter(), 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def step(self, terms: dict[str, Tensor]) -> None:
        """Count a step; show speed and loss from time to time."""
        import torch  # not at the top: `zoo train` checks its trackers before torch is loaded

        self.bar.update()
        self.steps += 1
        # Reading the loss waits for an accelerator, so it happens only every ten steps.
        if self.steps % 10 == 0 and not self.bar.disable:
            now = time.perf_counter()
            speed = 10 * self.batch_size / (now - self.since)
            loss = torch.stack(list(terms.values())).sum().item()
            self.bar.set_postfix_str(f"{speed:,.0f} images/s, loss {loss:.3f}{self.last}", refresh=False)
            self.since = now

    def warn(self, text: str) -> None:
        """Print a warning above the bar, if it is shown."""
        if not self.bar.disable:
            self.bar.write(f"{self.bar.desc}: {text}", file=sys.stderr)

    def validated(self, scores: dict[str, float]) -> None:
        """Show the last validation scores."""
        if scores:
            self.last = f", val R@1 {scores['recall_at_1']:.3f}"
        self.since, self.steps = time.perf_counter(), 0


class Tracker(Protocol):
    """A receiver of each epoch's record, beside the log."""

    def write(self, record: dict[str, Any], step: int) -> None:
        """Take one epoch's record, after `step` steps: numbers, and groups such as `terms` and `indicators`."""

    def write_step(self, terms: dict[str, float], step: int) -> None:
        """Take the loss terms of a step."""

    def close(self) -> None:
        """End the run."""


class TensorBoard:
    """TensorBoard's event files in `folder`: view them with tensorboard --logdir."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder / "tensorboard")
        self.writer.add_text("recipe", f"```\n{recipe}\n```")

    def write(self, record: dict[str, Any], step: int) -> None:
        for name, value in flatten_numbers(record).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def write_step(self, terms: dict[str, float], step: int) -> None:
        for name, value in terms.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class RunTracker:
    """A run of Weights & Biases or trackio, which has the same calls, in the project dml-zoo.

    Their own environment variables apply (WANDB_MODE=offline).

    Args:
        library: The name of the library.
        recipe: The recipe, which becomes the run's configuration.
        folder: The folder to write to, for a library that asks for one.
    """

    def __init__(self, library: str, recipe: Recipe, folder: Path) -> None:
        places = {"dir": str(folder)} if library == "wandb" else {}
        self.run = import_module(library).init(project="dml-zoo", name=recipe.name, config=recipe.record, **places)

    def write(self, record: dict[str, Any], step: int) -> None:
        self.run.log({"epoch": record["epoch"], **flatten_numbers(record)}, step=step)

    def write_step(self, terms: dict[str, float], step: int) -> None:
        self.run.log(terms, step=step)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Recipe, Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": partial(RunTracker, "trackio"),
    "wandb": partial(RunTracker, "wandb"),
}
"""Library -> tracker."""


def track_epoch(trackers: Sequence[Tracker], record: dict[str, Any], history: list[dict[str, Tensor]]) -> None:
    """Give trackers the loss terms of an epoch's steps, and the epoch's record at its last step."""
    if not trackers:
        return
    first = (record["epoch"] - 1) * len(history) + 1
    steps = [{f"step/{name}": term.item() for name, term in terms.items()} for terms in history]
    for tracker in trackers:
        for number, values in enumerate(steps, start=first):
            tracker.write_step({**values, "step/loss": sum(values.values())}, number)
        tracker.write(record, first - 1 + len(history))


def check_trackers(names: Iterable[str]) -> None:
    """Check names of trackers.

    Raises:
        UsageError: If a name is unknown.
        MissingDependencyError: If its library is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise MissingDependencyError(f"{name} is not installed: pip install {name}")


def create_trackers(names: Iterable[str], recipe: Recipe, folder: Path) -> tuple[Tracker, ...]:
    """Return the trackers of these names, writing to `folder`; raise the errors of `check_trackers`."""
    names = tuple(names)
    check_trackers(names)
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(TRACKERS[name](recipe, folder) for name in names)


def mean_terms(history: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Return the mean loss and, if it has several terms, the mean of each over the steps that had it."""
    import torch  # not at the top: `zoo train` checks its trackers before torch is loaded

    loss = torch.stack([torch.stack(list(terms.values())).sum() for terms in history]).mean().item()
    names = {name for terms in history for name in terms}
    if len(names) == 1:
        return {"loss": loss}
    means = {n: torch.stack([terms[n] for terms in history if n in terms]).mean().item() for n in sorted(names)}
    return {"loss": loss, "terms": means}
