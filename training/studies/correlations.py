"""How measures go together over the runs of a study."""

from __future__ import annotations

import math

from training.studies.plan import Plan
from training.studies.rank import Ranks
from training.studies.results import Values
from training.studies.statistics import pearson
from training.studies.study import Measure

Found = list[tuple[str, str, str, float | None]]
"""Selection, the names of two, and their correlation; None where there is none."""

Column = dict[tuple[str, int], float]
"""By the arm's label and the seed."""


def correlations_of(plan: Plan, selection: str, tables: dict[Measure, Values], ranks: Ranks) -> Found:
    """Over all runs: of every two measures, where the study asks for it; and of the axis with every measure, over the
    runs of each recipe, unless the study has trends over all of them."""
    columns = {str(m): column(m, values, ranks) for m, values in tables.items() if varies(m)}
    found: Found = []
    placed = [] if plan.study.trends else [arm for arm in plan.study.arms if arm.x is not None]
    for recipe in dict.fromkeys(arm.recipe for arm in placed):
        places = {arm.label: arm.x for arm in placed if arm.recipe == recipe and arm.x is not None}
        axis = f"{plan.study.x} ({recipe.partition('-$')[0]})"
        for name, values in columns.items():
            on = [(places[label], value) for (label, _), value in values.items() if label in places]
            found.append((selection, axis, name, pearson([x for x, _ in on], [y for _, y in on])))
    names = list(columns) if plan.study.correlate else []
    for i, a in enumerate(names):
        others = [(b, pearson(list(columns[a].values()), list(columns[b].values()))) for b in names[i + 1 :]]
        found += [(selection, a, b, value) for b, value in others]
    return found


def varies(measure: Measure) -> bool:
    """Whether the measure is one of the embedding; NMI of random ones knows its dimension alone."""
    return measure.metric != "nmi_random"


def column(measure: Measure, values: Values, ranks: Ranks) -> Column:
    """The measure of every run; not a number, and so no part of a correlation, where the arm's rank decides it."""
    low = ranks.get(measure, {})
    return {
        (label, seed): math.nan if label in low else value
        for label, seeds in values.items()
        for seed, value in seeds.items()
    }
