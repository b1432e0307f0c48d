"""The commands that make a study's and a search's results, from their plans."""

from __future__ import annotations

import shlex

from training.studies.arms import SELECTIONS
from training.studies.plan import Plan
from training.studies.search import Search


def command_of(plan: Plan) -> str:
    """`zoo benchmark run`, with all that the plan has of its own, but for the folder."""
    words = ["zoo", "benchmark", "run", plan.study.name, "--dataset", plan.dataset, "--seeds", str(plan.seeds)]
    if plan.selections != plan.study.selections:
        words += ["--select", "both" if plan.selections == SELECTIONS else plan.selections[0]]
    words += [word for label in plan.only for word in ("--only", label)]
    return shlex.join([*words, *_common(plan)])


def command_of_search(search: Search) -> str:
    """`zoo benchmark search`, likewise."""
    counts = ("trials", "reruns", "folds", "patience", "seed")
    words = [word for name in counts for word in (f"--{name}", str(getattr(search, name)))]
    return shlex.join(
        ["zoo", "benchmark", "search", *search.losses, "--dataset", search.dataset, *words, *_common(search)]
    )


def _common(plan: Plan | Search) -> list[str]:
    data = [] if plan.data is None else ["--data", plan.data]
    return [*(word for setting in plan.settings for word in ("--set", setting)), *data]
