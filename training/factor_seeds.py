"""What several seeds of a model say of its heads: means, and paired differences of heads and of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from training.studies.statistics import Seeds, Summary, paired, summary
from zoo.comparison.runs import SEEDED

Figures = Mapping[tuple[str, str], Seeds]
"""By head and figure."""


def by_model(reports: Sequence[Mapping[str, Any]]) -> Mapping[str, Figures]:
    """The figures of reports of `training.factors.measure`, by model without its seed; of models with a seed alone."""
    found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for report in reports:
        if match := SEEDED.fullmatch(report["model"]):
            figures = found.setdefault(match["name"], {})
            for head, values in report["heads"].items():
                for name, value in values.items():
                    figures.setdefault((head, name), {})[int(match["seed"])] = value
    return found


def lines(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of each model of several seeds: every head's figures, less those of the first head, and less those of the first
    model's same head; means with 95 % Student-t intervals, differences paired by seed."""
    models = by_model(reports)
    reference = next(iter(models), "")
    for model, figures in models.items():
        first = next(iter(figures))[0]
        yield f"{model}, {max(len(seeds) for seeds in figures.values())} seeds"
        yield from _lines(figures, "")
        yield f"{model}: less its head {first!r}"
        yield from _lines(_less(figures, {key: figures.get((first, key[1]), {}) for key in figures}), "+", but=first)
        if model != reference:
            yield f"{model} less {reference}"
            yield from _lines(_less(figures, models[reference]), "+")


def _less(figures: Figures, others: Figures) -> dict[tuple[str, str], Summary]:
    found = {key: paired(seeds, others.get(key, {})) for key, seeds in figures.items()}
    return {key: difference for key, difference in found.items() if difference is not None}


def _lines(figures: Mapping[tuple[str, str], Seeds | Summary], sign: str, but: str = "") -> Iterator[str]:
    for (head, name), values in figures.items():
        if head != but:
            found = values if isinstance(values, Summary) else summary(list(values.values()))
            bounds = (
                "" if found.interval is None else f" ({found.interval[0]:{sign}.3f} to {found.interval[1]:{sign}.3f})"
            )
            yield f"  {head:15s} {name:32s} {found.mean:{sign}.3f}{bounds}"
