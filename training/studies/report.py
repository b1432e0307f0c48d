"""The outcome of a study: scores of every arm, differences to the baseline, verdicts, trends and correlations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from training.definitions import outdated
from training.recipe import Recipe
from training.studies.normalised import SettingSummary, normalised_scores
from training.studies.plan import FAILURE_FILE, Plan, Run, read_record
from training.studies.results import Result, evaluation_of, value_of
from training.studies.statistics import (
    FAILS,
    HOLDS,
    Measured,
    Values,
    difference_bounds,
    estimate_score,
    judge_claim,
    metric_bounds,
    paired_difference,
    word_for,
)
from training.studies.study import (
    EMBEDDING,
    FEATURES,
    GAP,
    RANDOM_HEAD,
    REDUCED_FEATURES,
    SELECTIONS,
    Arm,
    Claim,
    Measure,
    changed_settings,
    lacks_view,
    recipe_name,
)
from training.studies.trends import TrendEstimate, estimate_trend, judge_trends
from training.studies.trials import trial_folder, trial_title
from zoo.console import count
from zoo.data.dataset import dataset_title
from zoo.evaluation.statistics import UNDECIDED, Estimate, Verdict, judge, pearson
from zoo.models.card import head_kind
from zoo.models.published import PublishedScore, PublishedTable, published_tables
from zoo.models.results import data_title

ResultsBySeed = Mapping[str, Mapping[int, Result]]
"""The finished runs of one selection by the arm's label and the seed."""

Curves = dict[str, list[tuple[int, float]]]
"""By "ARM: WHAT by epoch" the epochs and the values."""

Ranks = dict[Measure, dict[str, tuple[int, int]]]
"""By measure of spectral decay and label: highest rank and dimension of embeddings that cannot fill their dimension."""

CorrelationEstimate = list[tuple[str, str, str, float | None]]
"""Selection, the names of two measures, and their correlation; None if it is undefined."""

SELECTION_RULE = (
    "Validation-selected minus last epoch, paired by seed; better or worse where p, adjusted by Holm for all of these "
    "differences, is below .05."
)

NOT_TESTED = Verdict(UNDECIDED)

HEAD_CURVE = "validation_recall_at_1_of_"
CURVES = {
    "validation_recall_at_1": "validation recall_at_1",
    "training_recall_at_1": "training recall_at_1",
    "classes_per_group": "classes per group",
}
"""Names of curves by their key in a run's log; `HEAD_CURVE` begins those of single heads."""


@dataclass(frozen=True)
class ScoreRow:
    """One arm by one measure.

    Attributes:
        arm: The arm's label.
        x: Its place on the study's axis.
        selection: How the measured epoch was selected.
        measure: The measure.
        value: The mean over seeds.
        difference: To the baseline, over common seeds.
        verdict: On the difference, in the family of all arms by this measure; None without a difference.
        published: The paper's own number.
        published_sd: Its standard deviation over runs, if the paper gives one.
        rank: Highest rank and dimension of the embeddings, if the rank is lower and determines the measure.
        head: What makes the arm's embedding, a value of `zoo.models.card.HEADS`, or "none".
    """

    arm: str
    x: float | None
    selection: str
    measure: Measure
    value: Estimate
    difference: Estimate | None
    verdict: Verdict | None = None
    published: float | None = None
    published_sd: float | None = None
    rank: tuple[int, int] | None = None
    head: str = ""


@dataclass(frozen=True)
class ClaimResult:
    """A claim, the paired difference between its arms, the tests of the difference, and the verdict on the claim.

    All claims of differences in a report are one family, all claims of closeness (`within`) another.
    """

    claim: Claim
    than: str
    selection: str
    difference: Estimate | None
    tests: Verdict = NOT_TESTED
    verdict: str = UNDECIDED


@dataclass(frozen=True)
class SelectionEffect:
    """One arm by one measure: validation-selected minus last epoch, tested together with all others."""

    arm: str
    measure: Measure
    difference: Estimate
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """The evaluation of the finished runs of a plan.

    Attributes:
        plan: The plan.
        data: The names and short hashes of the measured images; the name of the data set where no run records them.
        measured: The numbers of queries and classes of the test split, in words; "" where no run records them.
        protocols: How the published numbers of its arms were measured.
        values: Selection -> measure -> the value of each run.
        rows: The scores.
        claims: The claims with their verdicts.
        trends: The trends with their verdicts.
        normalised: Max-normalised scores by setting, if the study has them.
        over_classes: Whether intervals of test scores are over seeds and classes; otherwise they are over seeds.
        ranks: Arms whose spectral decay is meaningless; they are in no correlation with it.
        duplicates: Groups of labels that stand for the same model.
        outdated: By the arm's label the definitions of its runs that have changed since, each with what changed.
        selection_effects: Differences between the two selections, if the study has both.
        provenance_note: a sentence if runs of the two selections were made under different conditions.
        correlations: Correlations between measures, and with the study's axis.
        curves: Validation scores and other numbers by epoch, mean over seeds.
        spectra: Singular values, mean over seeds.
        missing: Titles of runs without a result.
        failures: Title -> message.
        budgets: By the arm's label the steps and the images of each run, distinct ones in ascending order; a run of
            an earlier version that does not tell its steps is left out.
        made_with: Every device, hardware, set of versions and commit of the runs.
        dates: When the first and the last run ended.
        seconds: Training time of all runs.
    """

    plan: Plan
    data: str
    measured: str
    protocols: list[str]
    values: dict[str, dict[Measure, Values]]
    rows: list[ScoreRow]
    claims: list[ClaimResult]
    trends: list[TrendEstimate]
    normalised: list[SettingSummary]
    over_classes: bool
    ranks: Ranks
    duplicates: list[list[str]]
    outdated: dict[str, dict[str, str]]
    selection_effects: list[SelectionEffect]
    provenance_note: str
    correlations: CorrelationEstimate
    curves: Curves
    spectra: dict[str, list[float]]
    missing: list[str]
    failures: dict[str, str]
    budgets: dict[str, list[tuple[int, int]]]
    made_with: dict[str, list[Any]]
    dates: tuple[str, str] | None
    seconds: float


def build_report(plan: Plan, folder: Path, runs: Sequence[Run] | None = None) -> Report:
    """Evaluate the finished runs in the folder of a study.

    Args:
        plan: The plan.
        folder: The study's folder.
        runs: The plan's runs, if they are known already.
    """
    runs = plan.runs(folder) if runs is None else runs
    finished = [run for run in runs if run.finished]
    results, ranks = [run.result() for run in finished], low_ranks(plan)
    values = {selection: _values_by_measure(plan, selection, finished, results) for selection in plan.selections}
    rows: list[ScoreRow] = []
    claims: list[ClaimResult] = []
    trends: list[TrendEstimate] = []
    correlations: CorrelationEstimate = []
    for selection, by_measure in values.items():
        by_seed = _results_by_seed(selection, finished, results)
        rows += _score_rows(plan, selection, by_measure, ranks, by_seed)
        claims += [_compared(plan, selection, claim, by_measure[claim.measure], by_seed) for claim in plan.claims]
        trends += [estimate_trend(plan, selection, trend, by_measure[trend.measure]) for trend in plan.study.trends]
        correlations += correlate_measures(plan, selection, by_measure, ranks)
    due = [(arm.label, trial) for arm in plan.arms if (trial := plan.next_values(arm)) is not None]
    failures = [(trial_title(*trial), trial_folder(folder, *trial) / FAILURE_FILE) for trial in due]
    failures += [(run.title, run.folder / FAILURE_FILE) for run in runs]
    return Report(
        plan=plan,
        data=_measured_data(plan, results),
        measured=_measured_numbers(results),
        protocols=published_protocols(plan),
        values=values,
        rows=rows,
        claims=_judge_claims(claims, plan, ranks),
        trends=judge_trends(trends),
        normalised=normalised_scores(plan, values),
        over_classes=any("class_scores" in evaluation for result in results for evaluation in result["evaluations"]),
        ranks=ranks,
        duplicates=_duplicate_arms(finished, results),
        outdated=_outdated_definitions(finished, results),
        selection_effects=selection_effects(plan, values),
        provenance_note=provenance_note(results),
        correlations=correlations,
        curves=_mean_curves(finished, results),
        spectra=_mean_lines(finished, results, _spectra),
        missing=[run.title for run in runs if not run.finished],
        failures={title: str(read_record(path)["message"]) for title, path in failures if path.exists()},
        budgets=_training_budgets(finished, results),
        made_with={
            key: _distinct(result.get(key) for result in results)
            for key in ("device", "hardware", "versions", "commit")
        },
        dates=_first_and_last_date(results),
        seconds=sum(training["seconds"] for result in results for training in result["training"]),
    )


def _measured_data(plan: Plan, results: Sequence[Result]) -> str:
    measured = [evaluation for result in results for evaluation in result["evaluations"] if evaluation.get("data")]
    titles = [data_title(evaluation) for evaluation in measured if evaluation["split"] != "train"]
    return " and ".join(dict.fromkeys(titles)) or dataset_title(plan.dataset)


def _measured_numbers(results: Sequence[Result]) -> str:
    """Return the numbers of queries and classes of the test split, or ""."""
    measured = [e for result in results for e in result["evaluations"] if e["split"] == "test" and e.get("queries")]
    texts = [
        f"{count(e['queries'], 'query', 'queries')} of {count(e['classes'], 'class', 'classes')}" for e in measured
    ]
    return " and ".join(dict.fromkeys(texts))


def published_score(plan: Plan, arm: Arm, measure: Measure) -> tuple[PublishedTable, PublishedScore] | None:
    """Return the published score of an arm, or of its recipe, on the plan's data set, and the table that contains it.

    Returns:
        None if no paper has printed the measure, if the whole study has settings or trials of the learning rate, or
        starts the arm from other than public weights, and if the recipe's name stands for another model than the
        arm's: the arm has changed settings or several models, or a part of the embedding is measured.
    """
    if plan.settings or ((plan.weights or plan.rates) and plan.changes(plan.recipes(arm))):
        return None
    name = recipe_name(arm.recipe, plan.dataset, arm.backbone)
    for table in published_tables():
        for score in table.scores:
            if (score.dataset, score.metric, score.split) != (plan.dataset, measure.metric, measure.split):
                continue
            if (score.study, score.arm, score.view) == (plan.study.paper_name, arm.label, measure.view):
                return table, score
            same_recipe = score.recipe == name and measure.view == score.view == EMBEDDING
            if same_recipe and not changed_settings(arm, plan.dataset):
                return table, score
    return None


def published_protocols(plan: Plan) -> list[str]:
    """Return for each table with published numbers of the study's arms how they were measured."""
    pairs = [(arm, measure) for arm in plan.study.arms for measure in plan.study.measures]
    scores = [score for arm, measure in pairs if (score := published_score(plan, arm, measure)) is not None]
    return [
        f"{table.name} ({table.paper.source}): {table.protocol}"
        for table in dict.fromkeys(table for table, _ in scores)
    ]


def _duplicate_arms(runs: Sequence[Run], results: Sequence[Result]) -> list[list[str]]:
    """Return groups of arms that are the same model: equal losses and scores, to the last digit, in every run.

    Args:
        runs: Finished runs.
        results: The result of each run.
    """
    records: dict[str, list[tuple[int, str, str]]] = {}
    for run, result in zip(runs, results, strict=True):
        losses = [epoch.get("loss") for training in result["training"] for epoch in training["log"]]
        scores = [evaluation["metrics"] for evaluation in result["evaluations"]]
        records.setdefault(run.arm.label, []).append((run.seed, run.selection, json.dumps([losses, scores])))
    groups: dict[str, list[str]] = {}
    for label, record in records.items():
        groups.setdefault(str(sorted(record)), []).append(label)
    return [labels for labels in groups.values() if len(labels) > 1]


def _outdated_definitions(runs: Sequence[Run], results: Sequence[Result]) -> dict[str, dict[str, str]]:
    """Return the definitions of each arm's runs that have changed since; see `Report.outdated`."""
    found: dict[str, dict[str, str]] = {}
    for run, result in zip(runs, results, strict=True):
        for recipe in result.get("resolved", ()):
            if changes := outdated(recipe):
                found.setdefault(run.arm.label, {}).update(changes)
    return found


def _training_budgets(runs: Sequence[Run], results: Sequence[Result]) -> dict[str, list[tuple[int, int]]]:
    """Return the distinct numbers of steps and images of the runs of each arm, ascending; see `Report.budgets`.

    Args:
        runs: Finished runs.
        results: The result of each run.
    """
    budgets: dict[str, set[tuple[int, int]]] = {}
    for run, result in zip(runs, results, strict=True):
        steps = images = 0
        for recipe, training in zip(run.recipes, result["training"], strict=True):
            # Runs of earlier versions do not record their steps; a recipe with a number of its own tells them.
            own = training.get("steps", recipe.schedule.steps * training["epochs"])
            steps, images = steps + own, images + training.get("images", own * recipe.batch.size)
        if steps:
            budgets.setdefault(run.arm.label, set()).add((steps, images))
    return {label: sorted(counts) for label, counts in budgets.items()}


def claim_counts(claims: Sequence[ClaimResult]) -> str:
    """Return how many claims hold, do not, or are undecided."""
    counts = {verdict: sum(judged.verdict == verdict for judged in claims) for verdict in (HOLDS, FAILS, UNDECIDED)}
    unmeasured = sum(judged.difference is None or judged.difference.n < 2 for judged in claims)
    many = "claim" if len(claims) == 1 else "claims"
    text = f"Of {len(claims)} {many} {counts[HOLDS]} hold, {counts[FAILS]} do not, {counts[UNDECIDED]} are undecided"
    return text + (f", {unmeasured} of them for want of two common seeds." if unmeasured else ".")


# Rank of embeddings


def _is_spectral_decay(measure: Measure) -> bool:
    """Return whether singular values make up the measure; those beyond the rank are 0 and would dominate it."""
    return measure.metric.startswith("spectral_decay")


def low_ranks(plan: Plan) -> Ranks:
    """Return for every measure of spectral decay the arms whose embeddings cannot fill their dimension."""
    ranks: Ranks = {}
    for measure in filter(_is_spectral_decay, plan.study.measures):
        by_label = {arm.label: rank_and_dim(plan.recipes(arm), measure.view) for arm in plan.arms}
        ranks[measure] = {label: (rank, dim) for label, (rank, dim) in by_label.items() if rank < dim}
    return ranks


def rank_and_dim(recipes: Sequence[Recipe], view: str = EMBEDDING) -> tuple[int, int]:
    """Return the highest rank that rows of a view can have, by their networks' widths, and their dimension.

    A head is a linear map with a bias from f features: its rows span at most f + 1 dimensions, and scaling each to unit
    length does not change that. Heads and models are scaled one by one, so that their ranks add up.
    """
    parts = [part for recipe in recipes for part in _parts(recipe, view)]
    return sum(rank for rank, _ in parts), sum(dim for _, dim in parts)


def _parts(recipe: Recipe, view: str) -> list[tuple[int, int]]:
    """Return rank and dimension of each part of the rows."""
    backbone, channels = recipe.backbone, recipe.preprocessing.channels
    features = _feature_count(backbone.architecture, json.dumps(backbone.network_args, sort_keys=True), channels)
    if view == FEATURES or REDUCED_FEATURES.fullmatch(view) or not recipe.heads:
        return [(features, features)]
    if view == RANDOM_HEAD:
        return [(min(features, recipe.heads[0].dim), recipe.heads[0].dim)]
    heads = [head for head in recipe.heads if view in (EMBEDDING, head.name)]
    return [(min(features + 1, head.dim), head.dim) for head in heads]


@cache
def _feature_count(architecture: str, args: str, channels: int) -> int:
    """Return the number of pooled features of a trunk, built without memory for its weights."""
    import torch

    from zoo.models.network import create_trunk, feature_count

    with torch.device("meta"):
        return feature_count(create_trunk(architecture, channels, json.loads(args)))


# Correlations


def correlate_measures(
    plan: Plan, selection: str, by_measure: Mapping[Measure, Values], ranks: Ranks
) -> CorrelationEstimate:
    """Return the correlations over all runs.

    Args:
        plan: The plan.
        selection: How the measured epochs were selected.
        by_measure: The values of each measure.
        ranks: Arms that are left out of correlations with spectral decay.

    Returns:
        The correlations of the study's axis with every measure over the runs of each recipe, unless the study has
        trends; and of every two measures, if the study wants them.
    """
    columns = {str(m): run_values(m, values, ranks) for m, values in by_measure.items() if depends_on_embeddings(m)}
    correlations: CorrelationEstimate = []
    placed = [] if plan.study.trends else [arm for arm in plan.study.arms if arm.x is not None]
    for recipe in dict.fromkeys(arm.recipe for arm in placed):
        places = {arm.label: arm.x for arm in placed if arm.recipe == recipe and arm.x is not None}
        axis = f"{plan.study.x} ({recipe.partition('-$')[0]})"
        for name, values in columns.items():
            points = [(places[label], value) for (label, _), value in values.items() if label in places]
            correlations.append((selection, axis, name, pearson([x for x, _ in points], [y for _, y in points])))
    names = list(columns) if plan.study.correlate else []
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            r = pearson(list(columns[name].values()), list(columns[other].values()))
            correlations.append((selection, name, other, r))
    return correlations


def depends_on_embeddings(measure: Measure) -> bool:
    """Return whether a measure depends on the embeddings; NMI of random ones depends only on their number."""
    return measure.metric != "nmi_random"


def run_values(measure: Measure, values: Values, ranks: Ranks) -> dict[tuple[str, int], float]:
    """Return the measure of every run by label and seed, NaN (left out of correlations) for arms of low rank."""
    low = ranks.get(measure, {})
    return {
        (label, seed): math.nan if label in low else value
        for label, seeds in values.items()
        for seed, value in seeds.items()
    }


# Selection of the epoch


def selection_effects(plan: Plan, values: Mapping[str, Mapping[Measure, Values]]) -> list[SelectionEffect]:
    """Return how selecting the epoch by validation changes each measure of each arm with runs of both selections.

    Args:
        plan: The plan.
        values: Selection -> measure -> the value of each run.
    """
    last, validation = SELECTIONS
    if not {last, validation} <= values.keys():
        return []
    effects: list[tuple[str, Measure, Estimate]] = []
    for measure, by_arm in values[validation].items():
        for arm in plan.study.arms:
            before = values[last].get(measure, {}).get(arm.label, {})
            difference = paired_difference(by_arm.get(arm.label, {}), before, measure.metric)
            if difference is not None:
                effects.append((arm.label, measure, difference))
    verdicts = judge([difference for *_, difference in effects], [plan.margin(measure) for _, measure, _ in effects])
    return [SelectionEffect(*of, word_for(of[1], found)) for of, found in zip(effects, verdicts, strict=True)]


def provenance_note(results: Sequence[Result]) -> str:
    """Return a sentence if runs of the two selections have different commits or hardware; otherwise nothing."""
    differing = []
    for name, key in (("commits", "commit"), ("hardware", "hardware")):
        sides = [{str(result.get(key)) for result in results if result["selection"] == side} for side in SELECTIONS]
        if all(sides) and sides[0] != sides[1]:
            differing.append(name)
    if not differing:
        return ""
    return f"The two were made with other {' and '.join(differing)}, which may be part of the difference."


# Parts of the report


def _values_by_measure(
    plan: Plan, selection: str, runs: Sequence[Run], results: Sequence[Result]
) -> dict[Measure, Values]:
    by_measure: dict[Measure, Values] = {measure: {} for measure in plan.study.measures}
    for run, result in zip(runs, results, strict=True):
        if run.selection == selection:
            for measure, values in by_measure.items():
                if any(lacks_view([head.name for head in recipe.heads], measure.view) for recipe in run.recipes):
                    continue
                values.setdefault(run.arm.label, {})[run.seed] = value_of(result, measure)
    return by_measure


def _results_by_seed(selection: str, runs: Sequence[Run], results: Sequence[Result]) -> ResultsBySeed:
    by_seed: dict[str, dict[int, Result]] = {}
    for run, result in zip(runs, results, strict=True):
        if run.selection == selection:
            by_seed.setdefault(run.arm.label, {})[run.seed] = result
    return by_seed


def _measurements(measure: Measure, arm: str, by_seed: ResultsBySeed) -> Measured:
    """Return the measurements of an arm by seed; none of a gap, which has no scores by class."""
    if measure.split == GAP:
        return {}
    return {seed: evaluation_of(result, measure) or {} for seed, result in by_seed.get(arm, {}).items()}


def _difference(measure: Measure, values: Values, arm: str, than: str, by_seed: ResultsBySeed) -> Estimate | None:
    """Return an arm less another over their common seeds, and over classes where their scores are known."""
    measured = [_measurements(measure, label, by_seed) for label in (arm, than)]
    return paired_difference(values.get(arm, {}), values.get(than, {}), measure.metric, *measured)


def _score_rows(
    plan: Plan, selection: str, by_measure: Mapping[Measure, Values], ranks: Ranks, by_seed: ResultsBySeed
) -> list[ScoreRow]:
    rows = [
        _score_row(plan, selection, arm, measure, values, ranks, by_seed)
        for arm in plan.study.arms
        for measure, values in by_measure.items()
        if arm.label in values
    ]
    verdicts: dict[tuple[Measure, str], Verdict] = {}
    for measure in by_measure:  # a family for each
        family = [row for row in rows if row.measure == measure and row.difference is not None]
        judged = judge([None if row.rank else row.difference for row in family], [plan.margin(measure)] * len(family))
        verdicts |= {(measure, row.arm): word_for(measure, found) for row, found in zip(family, judged, strict=True)}
    return [replace(row, verdict=verdicts.get((row.measure, row.arm))) for row in rows]


def _score_row(
    plan: Plan, selection: str, arm: Arm, measure: Measure, values: Values, ranks: Ranks, by_seed: ResultsBySeed
) -> ScoreRow:
    than, label = plan.study.reference, arm.label
    bounds = (difference_bounds if measure.split == GAP else metric_bounds)(measure.metric)
    value = estimate_score(values[label], bounds, measure.metric, _measurements(measure, label, by_seed))
    difference = None if label == than else _difference(measure, values, label, than, by_seed)
    published = published_score(plan, arm, measure)
    number, sd = (None, None) if published is None else (published[1].value, published[1].sd)
    rank, recipe = ranks.get(measure, {}).get(label), plan.recipes(arm)[0]
    head = head_kind(recipe.head_end, bool(recipe.heads))
    return ScoreRow(label, arm.x, selection, measure, value, difference, None, number, sd, rank, head)


def _compared(plan: Plan, selection: str, claim: Claim, values: Values, by_seed: ResultsBySeed) -> ClaimResult:
    """Return a claim with its difference, not yet judged."""
    than = claim.than or plan.study.reference
    return ClaimResult(claim, than, selection, _difference(claim.measure, values, claim.better, than, by_seed))


def _judge_claims(claims: Sequence[ClaimResult], plan: Plan, ranks: Ranks) -> list[ClaimResult]:
    """Return the claims with their verdicts; a measure of arms of low rank decides nothing."""
    tests: dict[int, Verdict] = {}
    for close in (False, True):  # two families
        family = [index for index, claim in enumerate(claims) if (claim.claim.within is not None) == close]
        compared = [_decidable(claims[index], ranks) for index in family]
        margins = [claims[index].claim.within or plan.margin(claims[index].claim.measure) for index in family]
        tests |= dict(zip(family, judge(compared, margins), strict=True))
    judged = [judge_claim(claim.claim, claim.difference, tests[index]) for index, claim in enumerate(claims)]
    return [replace(claim, tests=test, verdict=verdict) for claim, (test, verdict) in zip(claims, judged, strict=True)]


def _decidable(claim: ClaimResult, ranks: Ranks) -> Estimate | None:
    low = {claim.claim.better, claim.than} & set(ranks.get(claim.claim.measure, {}))
    return None if low else claim.difference


def _mean_lines(
    runs: Sequence[Run], results: Sequence[Result], lines_of: Callable[[Result], dict[str, list[float]]]
) -> dict[str, list[float]]:
    """Return the mean over seeds of each line in the results, by arm; only of lines as long as the first."""
    groups: dict[str, list[list[float]]] = {}
    for run, result in zip(runs, results, strict=True):
        for name, line in lines_of(result).items():
            groups.setdefault(f"{run.arm.label}: {name}", []).append(line)
    return {
        name: np.mean([line for line in lines if len(line) == len(lines[0])], axis=0).tolist()
        for name, lines in groups.items()
    }


def _mean_curves(runs: Sequence[Run], results: Sequence[Result]) -> Curves:
    """Return the mean over seeds of each curve, by arm, at the epochs that all seeds of the arm have."""
    groups: dict[str, list[dict[int, float]]] = {}
    for run, result in zip(runs, results, strict=True):
        for name, points in _curves(result["training"][0]["log"]).items():
            groups.setdefault(f"{run.arm.label}: {name} by epoch", []).append(points)
    return {
        name: [
            (epoch, float(np.mean([line[epoch] for line in lines]))) for epoch in lines[0] if _all_have(lines, epoch)
        ]
        for name, lines in groups.items()
    }


def _all_have(lines: Iterable[Mapping[int, float]], epoch: int) -> bool:
    """Return whether every curve has a value at an epoch; runs that end early have fewer."""
    return all(epoch in line for line in lines)


def _curves(log: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the curves in a run's log; test classes are measured once, and have none.

    R@1 is of held-out training classes, by the whole embedding and by single heads, or of the training images. The
    training loss of heads is in logs that have their R@1.
    """
    curves: dict[str, dict[int, float]] = {}
    for record in log:
        points = {name: record[key] for key, name in CURVES.items() if key in record}
        heads = [key.removeprefix(HEAD_CURVE) for key in record if key.startswith(HEAD_CURVE)]
        points |= {f"validation recall_at_1 of {head}": record[f"{HEAD_CURVE}{head}"] for head in heads}
        points |= {
            f"training loss of {head}": record["terms"][head] for head in heads if head in record.get("terms", ())
        }
        for name, value in points.items():
            curves.setdefault(name, {})[int(record["epoch"])] = float(value)
    return curves


def _spectra(result: Result) -> dict[str, list[float]]:
    kinds = {"spectrum": "singular values", "spectrum_by_class": "singular values of single classes"}
    return {
        f"{title}, {evaluation['split']} {evaluation['view']}, {result['selection']}": evaluation[key]
        for key, title in kinds.items()
        for evaluation in result["evaluations"]
        if evaluation.get(key)
    }


def _first_and_last_date(results: Sequence[Result]) -> tuple[str, str] | None:
    dates = sorted(result["date"] for result in results if "date" in result)  # all are in UTC
    return (dates[0], dates[-1]) if dates else None


def _distinct(values: Iterable[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct
