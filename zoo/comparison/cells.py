"""What people read of a comparison, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zoo.comparison.compare import Comparison
from zoo.published import PublishedScore, Table
from zoo.published.scores import scale

COLUMNS = ("row", "data set", "metric", "published", "ours", "95 %", "seeds", "difference", "how ours came about")
NUMBERS = ("published", "ours", "seeds", "difference")


def by_table(rows: Sequence[Comparison]) -> list[tuple[Table, list[Comparison]]]:
    grouped = groupby(rows, key=lambda row: row.table.name)
    return [(group[0].table, group) for _, same in grouped if (group := list(same))]


def heading(table: Table) -> str:
    return f"{table.name}: {table.title}"


def source(table: Table) -> str:
    return f"{table.paper.citation} ({table.paper.source}). Published: {table.protocol}."


def cells(row: Comparison) -> list[str]:
    """What people read of a row: percent where papers print percent."""
    score, ours = row.score, row.ours
    published = number_text(score.metric, score.value, score.sd)
    head = [score.row, score.dataset, score.metric, published]
    if ours is None or row.difference is None:
        return [*head, row.status, "", "", "", _command(score) if row.status == "not run" else ""]
    seeds = str(len(ours.runs))
    difference = number_text(score.metric, row.difference, sign="+")
    found = number_text(score.metric, ours.value, ours.sd), interval_text(score.metric, ours.interval, ours.over)
    return [*head, *found, seeds, difference, ours.protocol]


def _command(score: PublishedScore) -> str:
    """What measures the score here."""
    if score.recipe is not None:
        return f"zoo train {score.recipe}"
    return f"zoo benchmark run {score.study} --dataset {score.dataset}"


def interval_text(metric: str, bounds: tuple[float, float] | None, over: str | None) -> str:
    """Bounds as they are printed, and what they are over; nothing where there are none."""
    if bounds is None:
        return ""
    low, high = (number_text(metric, bound) for bound in bounds)
    return f"{low} to {high} over {over}"


def number_text(metric: str, value: float, sd: float | None = None, sign: str = "") -> str:
    """A metric's value, with its deviation: in percent where papers print percent."""
    factor, digits = scale(metric), 2 if scale(metric) == 100 else 3
    text = f"{factor * value:{sign}.{digits}f}"
    return text if sd is None else f"{text} ± {factor * sd:.{digits}f}"
