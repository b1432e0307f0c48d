"""Selection of the model that finetuning and distillation keep, and metrics before and after.

Some training classes are held out, and the starting point and the trained network are compared on them. The test
classes take no part in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zoo.console import count, interval_text
from zoo.data.dataset import Dataset
from zoo.evaluation.evaluate import METRICS, search_arguments
from zoo.evaluation.retrieval import per_query
from zoo.evaluation.split import RECIPE_FILE
from zoo.evaluation.statistics import SHARE, SIGNED, intervals_over_classes
from zoo.files import read_object
from zoo.render import Table

CHOSEN_BY = "map_at_r"
"""The metric that chooses: it uses all relatives of a query and so varies less than R@1."""

VALIDATION_SHARE, MOST_HELD_OUT = 0.25, 30

LEAST_TO_CHOOSE = 4
"""Training classes from which two are held out to choose by, so that two are left to learn from. Images of the classes
that are learnt from cannot replace them: they prefer a model that suits these classes and no others.
"""

Kept = Literal["base", "start", "trained"]


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after, with 95 % intervals over classes and that of the paired difference."""

    metric: str
    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]


def change_table(rows: Sequence[MetricChange]) -> Table:
    """Return the table of metrics before and after, with their intervals."""
    columns = ("metric", "before", "95 % over classes", "after", "95 %", "difference", "95 %, paired")
    cells = [
        [
            row.metric,
            f"{row.before:.4f}",
            interval_text(row.before_interval),
            f"{row.after:.4f}",
            interval_text(row.after_interval),
            f"{row.difference:+.4f}",
            interval_text(row.difference_interval, "+"),
        ]
        for row in rows
    ]
    return Table(columns, cells, numbers=("before", "after", "difference"))


def changes(rows: Sequence[MetricChange]) -> str:
    """Return metrics before and after as one line."""
    return ", ".join(f"{row.metric} {row.before:.4f} to {row.after:.4f}" for row in rows)


@dataclass(frozen=True)
class Selection:
    """The model that is kept, and the comparison that decided.

    Attributes:
        kept: "base", the model that training started from; "start", the new heads before the first step; or "trained".
        epoch: The kept epoch; 0 for the start, None for the base or if there was no validation.
        classes: The number of held-out training classes; 0 if none were held out: the base was kept because there were
            too few, or the last epoch because a setting asked for it.
        images: The number of their images.
        rows: The metrics of the base and of the best epoch on them.
    """

    kept: Kept
    epoch: int | None
    classes: int = 0
    images: int = 0
    rows: tuple[MetricChange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the selection as JSON values."""
        return {
            **dataclasses.asdict(self),
            "metric": CHOSEN_BY if self.classes else None,
            "chosen_by": self.chosen_by,
        }

    @property
    def chosen_by(self) -> str:
        """Return what chose: "held-out-classes", "too-few-classes" or, without a choice, "last-epoch"."""
        if self.classes:
            return "held-out-classes"
        return "too-few-classes" if self.kept == "base" else "last-epoch"

    @property
    def model_text(self) -> str:
        """Return the kept model for people."""
        texts = {"base": "the base, unchanged", "start": "the head before its first step"}
        return texts.get(self.kept, "the last epoch" if self.epoch is None else f"epoch {self.epoch}")

    @property
    def reason(self) -> str:
        """Return for people why that model is kept."""
        if self.chosen_by == "too-few-classes":
            return "too few training classes to show whether training helps on others"
        if self.chosen_by == "last-epoch":
            return "no training classes were held out to choose by"
        reasons = {
            "base": f"training lowered {CHOSEN_BY}",
            "start": f"no epoch had a higher {CHOSEN_BY} than the head before its first step",
        }
        reason = reasons.get(self.kept, f"{self.model_text} had the highest {CHOSEN_BY}")
        return f"{reason} on {count(self.classes, 'training class', 'training classes')} held out to choose by"


def read_selection(folder: Path) -> Selection | None:
    """Return the selection that the recipe.json of a finetuned model records, without its rows; None without one."""
    record = read_object(folder / RECIPE_FILE)
    try:
        values = record["selection"]
        return Selection(record["kept"], values["epoch"], int(values["classes"]), int(values["images"]))
    except (KeyError, TypeError, ValueError):
        return None


def validation_share(classes: int, least: int = LEAST_TO_CHOOSE) -> float:
    """Return the share of the training classes to hold out: a quarter, from two to 30 classes.

    Args:
        classes: The number of training classes.
        least: With fewer classes the share is 0.
    """
    if classes < least:
        return 0.0
    return min(max(2, round(VALIDATION_SHARE * classes)), MOST_HELD_OUT) / classes


def select(before: np.ndarray, after: np.ndarray, held_out: Dataset, epoch: int | None) -> Selection:
    """Choose between the base and the best epoch of training.

    Args:
        before: The base's embeddings of the held-out classes, float [n, d].
        after: Those of the best epoch, float [n, e].
        held_out: The images of the held-out classes.
        epoch: The best epoch, 0 for the start.
    """
    rows = measure_change(before, after, held_out)
    worse = next(row.difference for row in rows if row.metric == CHOSEN_BY) < 0
    kept: Kept = "base" if worse else "trained" if epoch else "start"
    return Selection(kept, None if worse else epoch, len(held_out.classes), len(held_out), rows)


def measure_change(before: np.ndarray, after: np.ndarray, images: Dataset) -> tuple[MetricChange, ...]:
    """Return each metric of two embeddings [n, d] and [n, e] of the same images, before and after.

    If the data set separates queries and gallery, its queries search its gallery.
    """
    first, second = (per_query(**search_arguments(rows, images.labels, images), k=(1,)) for rows in (before, after))
    changes = {name: second.values[name] - first.values[name] for name in METRICS}
    low, high, difference = (
        intervals_over_classes(values, first.classes, bounds)
        for values, bounds in (
            ({n: first.values[n] for n in METRICS}, SHARE),
            ({n: second.values[n] for n in METRICS}, SHARE),
            (changes, SIGNED),
        )
    )
    old, new = first.means(), second.means()
    return tuple(
        MetricChange(name, old[name], low[name], new[name], high[name], new[name] - old[name], difference[name])
        for name in METRICS
    )
