"""What reports of a search say in words, on every kind of page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.studies.claims import CLOSE
from training.studies.crossval import protocol_of_rerun
from training.studies.plan import read
from training.studies.search import PLAN, Search
from training.studies.stand_ins import with_recipes
from training.studies.words import told

CLOSENESS = (
    f"Whether every two losses lie within {100 * CLOSE:g} points of one another after tuning; differences over reruns "
    "are paired by seed. Holds where the whole 95 % interval lies within, does not where it lies beyond and is no "
    "wider than the difference, undecided otherwise; of all pairs: holds where each does, does not where any does not. "
    "Each interval is for its pair and score alone; none is corrected for the others."
)

SHORT = {"precision_at_1": "P@1", "r_precision": "RP", "map_at_r": "MAP@R"}


def how(search: Search) -> str:
    """The protocol."""
    settings = f" With {', '.join(search.settings)}." if search.settings else ""
    owner = with_recipes(search.dataset)
    recipes = f" The recipes are those of {owner}." if owner != search.dataset else ""
    return (
        f"{search.trials} trials of each loss by {search.folds}-fold class-disjoint cross validation on the training "
        f"classes, patience {search.patience}; then {search.reruns} reruns of the best, tested once (after Reality, "
        "section 4). Separated: the mean of the folds' models; concatenated: their embeddings joined. Mean ± half of "
        f"the 95 % Student-t interval, in percent.{recipes}{settings}"
    )


def tested_by(report: Sequence[dict[str, Any]]) -> list[str]:
    """Who searched what in the tests, in a sentence; nothing before the first test."""
    found = dict.fromkeys(protocol_of_rerun(run) for row in report for run in row["tests"])
    return [f"Tested by: {'; '.join(found)}."] if found else []


def made_with(folder: Path, report: Sequence[dict[str, Any]]) -> str:
    """When the trials ran, and what the search was begun or last resumed with."""
    dates = sorted(date for row in report for date in (row["began"], row["ended"]) if date)
    ran = f"Trials ran from {dates[0]} to {dates[-1]}. " if dates else ""
    facts = read(folder / PLAN)
    known = "; ".join(told(facts[key]) for key in ("hardware", "versions", "commit") if facts.get(key))
    return f"{ran}Made with: {known}."


def values_of(row: dict[str, Any]) -> str:
    """The best values of a loss."""
    best = row["best"]
    if not best:
        return "none yet"
    return ", ".join(f"{key.rpartition('.')[2]} {value:.4g}" for key, value in best["values"].items())
