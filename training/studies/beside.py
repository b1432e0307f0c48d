"""The published number that an arm's score is to be compared with."""

from __future__ import annotations

from training.studies.arms import recipe_name
from training.studies.plan import Plan
from training.studies.study import EMBEDDING, Arm, Measure
from zoo.published import PublishedScore, Table, tables


def published_of(plan: Plan, arm: Arm, measure: Measure) -> tuple[Table, PublishedScore] | None:
    """The score of the arm's row, or of its recipe, on the plan's data set, and the table that it stands in.

    None where settings change the recipe of an arm that names no row, where no paper has printed the measure, and for
    parts of an embedding.
    """
    if plan.settings or arm.copies > 1 or measure.view != EMBEDDING or (arm.settings and arm.published is None):
        return None
    name = recipe_name(arm.recipe, plan.dataset, arm.backbone)
    wanted = (plan.dataset, measure.metric, measure.split)
    for table in tables():
        for score in table.scores:
            own = (table.name, score.row) == arm.published if arm.published else score.recipe == name
            if own and (score.dataset, score.metric, score.split) == wanted:
                return table, score
    return None


def protocols_of(plan: Plan) -> list[str]:
    """How the published numbers of the study's arms came about, table by table."""
    pairs = [(arm, measure) for arm in plan.study.arms for measure in plan.study.measures]
    found = [at for arm, measure in pairs if (at := published_of(plan, arm, measure)) is not None]
    known = dict.fromkeys(table for table, _ in found)
    return [f"{each.name} ({each.paper.source}): {each.protocol}" for each in known]
