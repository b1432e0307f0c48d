"""Where an epoch's record goes beside the log: TensorBoard, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from training.recipe import Recipe
from zoo.errors import MissingDependencyError, UsageError, nearest


class Tracker(Protocol):
    def write(self, record: dict[str, Any]) -> None:
        """One epoch's record: numbers, and `terms`, a dict of numbers."""

    def close(self) -> None:
        """The run has ended."""


class TensorBoard:
    """Event files in `folder`: view them with tensorboard --logdir."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder / "tensorboard")
        self.writer.add_text("recipe", f"```\n{recipe}\n```")

    def write(self, record: dict[str, Any]) -> None:
        for name, value in flat(record).items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases in the project dml-zoo; its own environment variables apply (WANDB_MODE=offline)."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        import wandb

        self.run = wandb.init(project="dml-zoo", name=recipe.name, config=recipe.to_json(), dir=str(folder))

    def write(self, record: dict[str, Any]) -> None:
        self.run.log(flat(record), step=record["epoch"])

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Recipe, Path], Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""By the names of the libraries that they need."""


def check_trackers(names: Iterable[str]) -> None:
    """Raises `UsageError` for an unknown name, `MissingDependencyError` for one whose library is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"there is no tracker {name!r}.{nearest(name, TRACKERS)} Known: {', '.join(TRACKERS)}.")
        if find_spec(name) is None:
            raise MissingDependencyError(f"{name} is not installed: pip install {name}")


def create_trackers(names: Iterable[str], recipe: Recipe, folder: Path) -> tuple[Tracker, ...]:
    """Raises what `check_trackers` raises."""
    names = tuple(names)
    check_trackers(names)
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(TRACKERS[name](recipe, folder) for name in names)


def flat(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record; those of its terms under terms/NAME."""
    terms = {f"terms/{name}": value for name, value in record.get("terms", {}).items()}
    return {**{name: value for name, value in record.items() if name not in ("epoch", "terms")}, **terms}
