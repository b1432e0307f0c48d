"""The published number that an arm's score is to be compared with."""

from __future__ import annotations

from training.studies.arms import changes_of, recipe_name
from training.studies.plan import Plan
from training.studies.study import EMBEDDING, Arm, Measure
from zoo.models.published import PublishedScore, PublishedTable, tables


def published_of(plan: Plan, arm: Arm, measure: Measure) -> tuple[PublishedTable, PublishedScore] | None:
    """The score that names the arm, or its recipe, on the plan's data set, and the table that it stands in.

    None where no paper has printed the measure, where the whole study has settings, and where the recipe's name stands
    for another model than the arm's: its settings change it, it is several, or a part of the embedding is measured.
    """
    if plan.settings:
        return None
    name = recipe_name(arm.recipe, plan.dataset, arm.backbone)
    wanted = (plan.dataset, measure.metric, measure.split)
    for table in tables():
        for score in table.scores:
            if (score.dataset, score.metric, score.split) != wanted:
                continue
            if (score.study, score.arm, score.view) == (plan.study.name, arm.label, measure.view):
                return table, score
            if score.recipe == name and measure.view == score.view == EMBEDDING and not changes_of(arm, plan.dataset):
                return table, score
    return None


def protocols_of(plan: Plan) -> list[str]:
    """How the published numbers of the study's arms came about, table by table."""
    pairs = [(arm, measure) for arm in plan.study.arms for measure in plan.study.measures]
    found = [at for arm, measure in pairs if (at := published_of(plan, arm, measure)) is not None]
    known = dict.fromkeys(table for table, _ in found)
    return [f"{each.name} ({each.paper.source}): {each.protocol}" for each in known]
