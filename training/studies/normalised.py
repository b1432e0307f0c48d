"""Scores divided by their maximum over the arms of an objective, and summaries over metrics (Revisiting, 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.studies.plan import Plan
from training.studies.statistics import Values
from training.studies.study import Arm, Measure
from zoo.render import Table

NORMALISATION = (
    "For each objective every metric is divided by its maximum over the settings, as in section 4.2 of Revisiting: 1 "
    "is the best setting of the objective by the metric. A line sums up the quotients of all objectives and metrics."
)


@dataclass(frozen=True)
class SettingSummary:
    """Normalised scores of one setting, such as a batch sampler, over all pairs of objective and metric.

    Attributes:
        setting: The setting.
        selection: How the measured epochs were selected.
        objectives: Mean over metrics by objective.
        scores: The number of pairs.
        mean: Their mean.
        sd: Their standard deviation.
        low: The least of them.
        high: The greatest of them.
    """

    setting: str
    selection: str
    objectives: dict[str, float]
    scores: int
    mean: float
    sd: float
    low: float
    high: float


def _objective_of(arm: Arm) -> str:
    """Return the objective of an arm: the part of its recipe's name before the backbone."""
    return arm.recipe.partition("-$")[0]


def _setting_of(arm: Arm) -> str:
    """Return the setting of an arm: its label without the objective."""
    return arm.label.removeprefix(_objective_of(arm)).strip()


def divide_by_maximum(scores: Mapping[str, float]) -> dict[str, float]:
    """Return scores divided by the greatest of them; empty if none is positive.

    Args:
        scores: The values of one metric by setting, for one objective.
    """
    top = max(scores.values(), default=0.0)
    return {setting: score / top for setting, score in scores.items()} if top > 0 else {}


def summarise_settings(
    arms: Sequence[Arm],
    measures: Iterable[Measure],
    means: Mapping[Measure, Mapping[str, float]],
    selection: str = "last",
) -> list[SettingSummary]:
    """Return a summary for each setting that has scores, in the order of the arms.

    Args:
        arms: The arms; those of one objective differ in the setting.
        measures: The metrics to summarise.
        means: By metric the mean over seeds of each arm, by label.
        selection: How the measured epochs were selected.
    """
    quotients: dict[str, dict[str, list[float]]] = {_setting_of(arm): {} for arm in arms}
    for objective in dict.fromkeys(map(_objective_of, arms)):
        own = [arm for arm in arms if _objective_of(arm) == objective]
        for measure in measures:
            known = means.get(measure, {})
            scores = {_setting_of(arm): known[arm.label] for arm in own if arm.label in known}
            for setting, quotient in divide_by_maximum(scores).items():
                quotients[setting].setdefault(objective, []).append(quotient)
    return [_summary(setting, selection, by_objective) for setting, by_objective in quotients.items() if by_objective]


def normalised_scores(plan: Plan, values: Mapping[str, Mapping[Measure, Values]]) -> list[SettingSummary]:
    """Return the max-normalised scores of each selection, by setting; none unless the study has them.

    Args:
        plan: The plan.
        values: Selection -> measure -> the value of each run.
    """
    summaries: list[SettingSummary] = []
    for selection, by_measure in values.items() if plan.study.normalised else ():
        means = {
            measure: {label: float(np.mean(list(seeds.values()))) for label, seeds in by_label.items()}
            for measure, by_label in by_measure.items()
        }
        summaries += summarise_settings(plan.arms, plan.study.normalised, means, selection)
    return summaries


def normalised_table(summaries: Sequence[SettingSummary]) -> Table:
    """Return a line for each setting and a column for each objective."""
    objectives = dict.fromkeys(name for summary in summaries for name in summary.objectives)
    several = len({summary.selection for summary in summaries}) > 1
    rows = []
    for summary in summaries:
        means = [f"{summary.objectives[name]:.3f}" if name in summary.objectives else "" for name in objectives]
        setting = summary.setting + (f" ({summary.selection})" if several else "")
        spread = [f"{summary.mean:.3f} ± {summary.sd:.3f}", f"{summary.low:.3f} to {summary.high:.3f}"]
        rows.append([setting, *means, *spread, str(summary.scores)])
    return Table(("setting", *objectives, "all", "range", "scores"), rows)


def _summary(setting: str, selection: str, by_objective: Mapping[str, Sequence[float]]) -> SettingSummary:
    pooled = np.concatenate([np.asarray(values) for values in by_objective.values()])
    means = {objective: float(np.mean(values)) for objective, values in by_objective.items()}
    spread = float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0
    bounds = float(pooled.min()), float(pooled.max())
    return SettingSummary(setting, selection, means, len(pooled), float(pooled.mean()), spread, *bounds)
