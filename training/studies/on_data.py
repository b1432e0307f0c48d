"""A study as it is on a data set: with the recalls that the data set is reported at, and a note of what is read."""

from __future__ import annotations

import dataclasses

from training.studies.plan import Plan
from training.studies.stand_ins import with_recipes
from training.studies.study import EMBEDDING, Measure
from zoo.data.official import RECALL_AT


def on_data(plan: Plan) -> Plan:
    """The plan, its study's measures and note fitted to the data set whose images it reads."""
    read, owner = plan.recipes(plan.study.arms[0])[0].data.dataset, with_recipes(plan.dataset)
    note = plan.study.note
    if read != owner:
        where = f" ({plan.data})" if plan.data else ""
        note = f"The images are those of the data set {read}{where}, the recipes those of {owner}. {note}".strip()
    measures = tuple(dict.fromkeys(new for old in plan.study.measures for new in _fitted(old, read)))
    return dataclasses.replace(plan, study=dataclasses.replace(plan.study, measures=measures, note=note))


def _fitted(measure: Measure, dataset: str) -> list[Measure]:
    """The measure, or instead of a recall beyond 1 all those at which the data set is reported."""
    beyond = measure.recall_at is not None and measure.recall_at > 1
    if not beyond or (measure.split, measure.view) != ("test", EMBEDDING) or dataset not in RECALL_AT:
        return [measure]
    return [Measure(f"recall_at_{k}") for k in RECALL_AT[dataset] if k > 1]
