"""What a model folder's results say for its page on the Hub, each number beside those that papers print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zoo.cards import Card
from zoo.origins import read_origin
from zoo.published import tables
from zoo.results import read_results

METRICS = {"map_at_r": "MAP@R", "r_precision": "R-precision", "nmi": "NMI"}
"""What is shown beside recall, by its key in results.json."""


@dataclass(frozen=True)
class Score:
    """One line of the table of scores. metric: as in results.json. Value and bounds are fractions.

    published: (value, source) of papers, for the recipe; changed: what this model was trained by otherwise, in words.
    """

    dataset: str
    split: str
    protocol: str
    variant: str
    metric: str
    title: str
    value: float
    interval: tuple[float, float] | None
    published: tuple[tuple[float, str], ...]
    changed: str = ""


def scores(folder: Path, card: Card) -> Iterator[Score]:
    """What results.json says of recall and of `METRICS`, each beside what papers print for the model's recipe."""
    origin = read_origin(folder, card.name)
    for result in read_results(folder):
        for metric, value in result["metrics"].items():
            if (title := _title(metric)) is None:
                continue
            bounds = result.get("intervals", {}).get(metric)
            variant = " ".join(filter(None, (result["runtime"], result["precision"])))
            dataset, split = result["dataset"] or "unknown", result["split"] or "unknown"
            known = tuple(_published(origin.recipe, dataset, split, metric))
            interval = (bounds[0], bounds[1]) if bounds else None
            yield Score(
                dataset, split, result["protocol"], variant, metric, title, value, interval, known, origin.words
            )


def _title(metric: str) -> str | None:
    if metric.startswith("recall_at_"):
        return f"R@{metric.removeprefix('recall_at_')}"
    return METRICS.get(metric)


def _published(recipe: str | None, dataset: str, split: str, metric: str) -> Iterator[tuple[float, str]]:
    """What papers print for the recipe of that name; of the rows that no recipe makes again, nothing."""
    if recipe is None:
        return
    for table in tables():
        for score in table.scores:
            if (score.recipe, score.dataset, score.split, score.metric) == (recipe, dataset, split, metric):
                yield score.value, f"{table.paper.short}, {table.title}, {table.paper.source}"
