"""Report value: rows, verdicts, published numbers.

The published number that an arm's score is to be compared with.

Whether tuned losses are close: differences between the test scores of every two, over reruns of the same seeds.

Embeddings of more numbers than directions: of a linear head that is wider than the features that it is given.

How measures go together over the runs of a study.

What it changes to choose the epoch on classes held out, beside the last epoch of training on all of them.

How a measure goes with the arms' places on the study's axis: a line through all arms, seed by seed.

The outcome of a study: every arm by every measure, differences to the baseline, verdicts, correlations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from training.recipe import Recipe
from training.studies.papers.claims import CLOSE
from training.studies.plan import FAILURE_FILE, Plan, Run, Values, duplicate_arms, read_record, values_of
from training.studies.search import METRICS
from training.studies.statistics import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Summary,
    adjust_holm,
    judge_claim,
    p_value,
    paired_difference,
    pearson,
    sided_verdict,
    summarise,
)
from training.studies.study import (
    EMBEDDING,
    FEATURES,
    RANDOM_HEAD,
    REDUCED_FEATURES,
    SELECTIONS,
    Arm,
    Claim,
    Measure,
    Trend,
    changed_settings,
    recipe_name,
)
from zoo.models.published import PublishedScore, PublishedTable, published_tables


def published_score(plan: Plan, arm: Arm, measure: Measure) -> tuple[PublishedTable, PublishedScore] | None:
    """The score that names the arm, or its recipe, on the plan's data set, and the table that it stands in.

    None where no paper has printed the measure, where the whole study has settings, and where the recipe's name stands
    for another model than the arm's: its settings change it, it is several, or a part of the embedding is measured.
    """
    if plan.settings:
        return None
    name = recipe_name(arm.recipe, plan.dataset, arm.backbone)
    wanted = (plan.dataset, measure.metric, measure.split)
    for table in published_tables():
        for score in table.scores:
            if (score.dataset, score.metric, score.split) != wanted:
                continue
            if (score.study, score.arm, score.view) == (plan.study.name, arm.label, measure.view):
                return table, score
            if (
                score.recipe == name
                and measure.view == score.view == EMBEDDING
                and not changed_settings(arm, plan.dataset)
            ):
                return table, score
    return None


def published_protocols(plan: Plan) -> list[str]:
    """How the published numbers of the study's arms came about, table by table."""
    pairs = [(arm, measure) for arm in plan.study.arms for measure in plan.study.measures]
    found = [at for arm, measure in pairs if (at := published_score(plan, arm, measure)) is not None]
    known = dict.fromkeys(table for table, _ in found)
    return [f"{each.name} ({each.paper.source}): {each.protocol}" for each in known]


KINDS = ("separated", "concatenated")

Rerun = Mapping[str, Any]
"""What a rerun wrote."""


@dataclass(frozen=True)
class LossDifference:
    """Of two losses by a metric of a kind: the first's minus the second's, and whether both lie within `CLOSE`."""

    kind: str
    metric: str
    loss: str
    other: str
    difference: Summary | None
    verdict: str


def differences(reruns: Mapping[str, Sequence[Rerun]]) -> list[LossDifference]:
    """Between every two losses, by the reruns of each.

    Reruns of one number have one seed whatever the loss, so that networks start alike and differences are paired.
    """
    pairs = list(combinations([loss for loss, runs in reruns.items() if runs], 2))
    return [_difference(kind, metric, pair, reruns) for metric in METRICS for kind in KINDS for pair in pairs]


def loss_differences(report: Sequence[Mapping[str, Any]]) -> list[LossDifference]:
    """Between every two losses of a search's report that were tested."""
    return differences({row["loss"]: row["tests"] for row in report})


def _difference(kind: str, metric: str, pair: tuple[str, str], reruns: Mapping[str, Sequence[Rerun]]) -> LossDifference:
    ours, others = ({int(run["seed"]): float(run[kind][metric]) for run in reruns[loss]} for loss in pair)
    found = paired_difference(ours, others)
    claim = Claim(f"{pair[0]} lies within {CLOSE} of {pair[1]}", *pair, within=CLOSE)
    return LossDifference(kind, metric, *pair, found, judge_claim(claim, found))


def combined_verdict(found: Sequence[LossDifference]) -> str:
    """Of several: holds where each does, does not where any does not, else undecided."""
    verdicts = {each.verdict for each in found}
    return FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED


def group_by_score(found: Sequence[LossDifference]) -> dict[tuple[str, str], list[LossDifference]]:
    """By metric and kind, as they come."""
    groups: dict[tuple[str, str], list[LossDifference]] = {}
    for each in found:
        groups.setdefault((each.metric, each.kind), []).append(each)
    return groups


Ranks = dict[Measure, dict[str, tuple[int, int]]]
"""By measure of spectral decay and label: the highest rank and the dimension of embeddings whose rank is the lower."""


def is_spectral_decay(measure: Measure) -> bool:
    """Whether the measure is made of singular values: those that the rank leaves at 0 decide it, and mean nothing."""
    return measure.metric.startswith("spectral_decay")


def low_ranks(plan: Plan) -> Ranks:
    """Of every measure of spectral decay; arms whose embeddings can fill their dimension are left out."""
    return {measure: _ranks(plan, measure.view) for measure in plan.study.measures if is_spectral_decay(measure)}


def _ranks(plan: Plan, view: str) -> dict[str, tuple[int, int]]:
    found = {arm.label: rank_and_dim(plan.recipes(arm), view) for arm in plan.arms}
    return {label: (rank, dim) for label, (rank, dim) in found.items() if rank < dim}


def rank_and_dim(recipes: Sequence[Recipe], view: str = EMBEDDING) -> tuple[int, int]:
    """The highest rank that rows of a view can have, for their networks' widths, and their dimension.

    A head is a linear map with a bias of f features: its rows lie in f + 1 dimensions at most, and scaling each to unit
    length leaves them there. Heads, and models, are scaled one by one: their ranks add up.
    """
    pairs = [pair for recipe in recipes for pair in _parts(recipe, view)]
    return sum(rank for rank, _ in pairs), sum(dim for _, dim in pairs)


def _parts(recipe: Recipe, view: str) -> list[tuple[int, int]]:
    """Rank and dimension of each part of the rows."""
    features = _features(recipe)
    if view == FEATURES or REDUCED_FEATURES.fullmatch(view) or not recipe.heads:
        return [(features, features)]
    if view == RANDOM_HEAD:
        return [(min(features, recipe.heads[0].dim), recipe.heads[0].dim)]
    heads = [head for head in recipe.heads if view in (EMBEDDING, head.name)]
    return [(min(features + 1, head.dim), head.dim) for head in heads]


def _features(recipe: Recipe) -> int:
    backbone = recipe.backbone
    return _width(backbone.architecture, json.dumps(backbone.args, sort_keys=True), recipe.preprocessing.channels)


@cache
def _width(architecture: str, args: str, channels: int) -> int:
    """The pooled features of a trunk, built without memory for its weights."""
    import torch

    from zoo.models.network import create_trunk, feature_count

    with torch.device("meta"):
        return feature_count(create_trunk(architecture, channels, json.loads(args)))


CorrelationEstimate = list[tuple[str, str, str, float | None]]
"""Selection, the names of two, and their correlation; None where there is none."""

Column = dict[tuple[str, int], float]
"""By the arm's label and the seed."""


def correlate_measures(plan: Plan, selection: str, tables: dict[Measure, Values], ranks: Ranks) -> CorrelationEstimate:
    """Over all runs: of every two measures, where the study asks for it; and of the axis with every measure, over the
    runs of each recipe, unless the study has trends over all of them."""
    columns = {str(m): run_values(m, values, ranks) for m, values in tables.items() if depends_on_embeddings(m)}
    found: CorrelationEstimate = []
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


def depends_on_embeddings(measure: Measure) -> bool:
    """Whether the measure is one of the embedding; NMI of random ones knows its dimension alone."""
    return measure.metric != "nmi_random"


def run_values(measure: Measure, values: Values, ranks: Ranks) -> Column:
    """The measure of every run; not a number, and so no part of a correlation, where the arm's rank decides it."""
    low = ranks.get(measure, {})
    return {
        (label, seed): math.nan if label in low else value
        for label, seeds in values.items()
        for seed, value in seeds.items()
    }


HIGHER, LOWER = "higher", "lower"
_DIRECTIONS = {HOLDS: HIGHER, FAILS: LOWER, UNDECIDED: UNDECIDED}

SELECTION_RULE = (
    "Validation-selected minus last epoch, paired by seed; higher or lower where the 95 % interval lies beside 0 and "
    "is no wider, end to end, than the difference."
)


@dataclass(frozen=True)
class SelectionEffect:
    """One arm by one measure: validation-selected minus last epoch, and whether that is higher, lower or undecided."""

    arm: str
    measure: Measure
    difference: Summary
    verdict: str


def selection_effects(plan: Plan, values: Mapping[str, Mapping[Measure, Values]]) -> list[SelectionEffect]:
    """Of every arm that has runs of both selections. values: selection -> measure -> the value of each run."""
    last, validation = SELECTIONS
    if not {last, validation} <= values.keys():
        return []
    found = []
    for measure, by_arm in values[validation].items():
        for arm in plan.study.arms:
            difference = paired_difference(by_arm.get(arm.label, {}), values[last].get(measure, {}).get(arm.label, {}))
            if difference is not None:
                said = _DIRECTIONS[judge_claim(Claim("", arm.label, measure=measure), difference)]
                found.append(SelectionEffect(arm.label, measure, difference, said))
    return found


def provenance_note(results: Sequence[Mapping[str, Any]]) -> str:
    """A sentence where runs of the two selections were made with other code or on other machines; else nothing."""
    told = []
    for name, key in (("commits", "commit"), ("hardware", "hardware")):
        sides = {side: {str(one.get(key)) for one in results if one["selection"] == side} for side in SELECTIONS}
        if all(sides.values()) and len(set(map(frozenset, sides.values()))) > 1:
            told.append(name)
    if not told:
        return ""
    return f"The two were made with other {' and '.join(told)}, which may be part of the difference."


MIN_ARMS = 3
"""So many arms at least make a trend: a line goes through any two."""


@dataclass(frozen=True)
class TrendEstimate:
    """A trend over the arms that are measured, and the verdict: `sided` on its slope, but undecided where one arm left
    out turns the slope's sign.

    slope: by least squares, in units of the measure over those of the axis; spearman: the rank correlation; both over
    the seeds that all these arms have, None below `FEWEST` arms or on one place. left_out: the least and the greatest
    mean slope where any one arm is left out, None where one fewer are too few.
    """

    trend: Trend
    selection: str
    arms: int
    slope: Summary | None
    spearman: Summary | None
    left_out: tuple[float, float] | None
    verdict: str


def estimate_trends(plan: Plan, selection: str, tables: Mapping[Measure, Values]) -> list[TrendEstimate]:
    return [_estimate_trend(plan, selection, trend, tables[trend.measure]) for trend in plan.study.trends]


def _estimate_trend(plan: Plan, selection: str, trend: Trend, values: Values) -> TrendEstimate:
    places = {arm.label: arm.x for arm in plan.study.arms if arm.x is not None and arm.label in values}
    slopes = slopes_of(places, values)
    fewer = [slopes_of({k: x for k, x in places.items() if k != label}, values) for label in places]
    means = [float(np.mean(each)) for each in fewer if each]
    slope = summarise(slopes) if slopes else None
    ranks = spearmans_of(places, values) if slopes else []
    left_out = (min(means), max(means)) if means else None
    turned = left_out is not None and left_out[0] < 0 < left_out[1]
    return TrendEstimate(
        trend,
        selection,
        len(places),
        slope,
        summarise(ranks) if ranks else None,
        left_out,
        UNDECIDED if turned else sided_verdict(slope, trend.lower),
    )


def slopes_of(places: Mapping[str, float], values: Values) -> list[float]:
    """The slope of each seed that all arms have, by least squares; none where the arms are too few or on one place."""
    if len(places) < MIN_ARMS or len(set(places.values())) < 2:
        return []
    x = np.array(list(places.values()))
    x = x - x.mean()
    return [float(x @ line / (x @ x)) for line in _seed_values(places, values)]


def spearmans_of(places: Mapping[str, float], values: Values) -> list[float]:
    """Spearman's correlation of each such seed, equal places and values sharing their mean rank; without those seeds in
    which all arms are equal."""
    from scipy.stats import rankdata

    ranks = list(rankdata(list(places.values())))
    found = (pearson(ranks, list(rankdata(line))) for line in _seed_values(places, values))
    return [value for value in found if value is not None]


def _seed_values(places: Mapping[str, float], values: Values) -> list[np.ndarray]:
    """The arms' values float64 [m] of each seed that all of them have."""
    seeds = set.intersection(*(set(values[label]) for label in places))
    return [np.array([values[label][seed] for label in places]) for seed in sorted(seeds)]


Result = dict[str, Any]


@dataclass(frozen=True)
class ScoreRow:
    """One arm by one measure; difference: to the baseline, over common seeds.

    published, published_sd: the paper's own number, and its standard deviation over runs where it gives one. rank: the
    highest rank and the dimension of the embeddings, where the measure is decided by the rank's being lower.
    """

    arm: str
    x: float | None
    selection: str
    measure: Measure
    value: Summary
    difference: Summary | None
    published: float | None = None
    published_sd: float | None = None
    rank: tuple[int, int] | None = None


@dataclass(frozen=True)
class ClaimResult:
    """A claim, the paired difference it rests on, and the verdict.

    holm: the p-value of the difference, adjusted for all claims of differences in the report; None where the claim is
    that there is little difference, and below two seeds.
    """

    claim: Claim
    than: str
    selection: str
    difference: Summary | None
    verdict: str
    holm: float | None = None


@dataclass(frozen=True)
class Report:
    """What the finished runs of a plan say.

    ranks: arms whose spectral decay means nothing; they are in no correlation with it. twins: labels of one model.
    moved, unlike: what `training.studies.report` says of the two selections, where there are both.
    protocols: how published numbers of its arms came about. values: selection -> measure -> the value of each run.
    missing: titles of runs without a result; failures: title -> message; made_with: hardware, versions, commits: all
    that the runs were made with; dates: when the first and the last run ended.
    """

    plan: Plan
    protocols: list[str]
    values: dict[str, dict[Measure, Values]]
    rows: list[ScoreRow]
    claims: list[ClaimResult]
    trends: list[TrendEstimate]
    ranks: Ranks
    twins: list[list[str]]
    moved: list[SelectionEffect]
    unlike: str
    correlations: CorrelationEstimate
    curves: dict[str, list[float]]
    spectra: dict[str, list[float]]
    missing: list[str]
    failures: dict[str, str]
    made_with: dict[str, list[Any]]
    dates: tuple[str, str] | None
    seconds: float


def build_report(plan: Plan, folder: Path, runs: Sequence[Run] | None = None) -> Report:
    """Read all that is finished in the folder of a study; runs: those of the plan, if they are known already."""
    runs = plan.runs(folder) if runs is None else runs
    finished = [run for run in runs if run.finished]
    results, ranks = [run.result() for run in finished], low_ranks(plan)
    rows: list[ScoreRow] = []
    claims: list[ClaimResult] = []
    trends: list[TrendEstimate] = []
    correlations: CorrelationEstimate = []
    values: dict[str, dict[Measure, Values]] = {}
    for selection in plan.selections:
        pairs = [(run, result) for run, result in zip(finished, results, strict=True) if run.selection == selection]
        chosen, found = [run for run, _ in pairs], [result for _, result in pairs]
        tables = {measure: values_of(chosen, found, measure) for measure in plan.study.measures}
        values[selection] = tables
        rows += _rows(plan, selection, tables, ranks)
        claims += [_judge_claim(plan, selection, claim, tables[claim.measure], ranks) for claim in plan.claims]
        trends += estimate_trends(plan, selection, tables)
        correlations += correlate_measures(plan, selection, tables, ranks)
    return Report(
        plan,
        published_protocols(plan),
        values,
        rows,
        _adjust_p_values(claims),
        trends,
        ranks,
        duplicate_arms(finished, results),
        selection_effects(plan, values),
        provenance_note(results),
        correlations,
        _means(finished, results, _validation_curve),
        _means(finished, results, _spectra),
        [run.title for run in runs if not run.finished],
        {
            run.title: str(read_record(run.folder / FAILURE_FILE)["message"])
            for run in runs
            if (run.folder / FAILURE_FILE).exists()
        },
        {key: _distinct(result.get(key) for result in results) for key in ("device", "hardware", "versions", "commit")},
        _dates(results),
        sum(each["seconds"] for result in results for each in result["training"]),
    )


def _rows(plan: Plan, selection: str, tables: dict[Measure, Values], ranks: Ranks) -> list[ScoreRow]:
    rows = []
    for arm in plan.study.arms:
        for measure, values in tables.items():
            if arm.label in values:
                base = values.get(plan.study.reference, {})
                difference = None if arm.label == plan.study.reference else paired_difference(values[arm.label], base)
                value = summarise(list(values[arm.label].values()))
                found = published_score(plan, arm, measure)
                printed, sd = (None, None) if found is None else (found[1].value, found[1].sd)
                rank = ranks.get(measure, {}).get(arm.label)
                rows.append(ScoreRow(arm.label, arm.x, selection, measure, value, difference, printed, sd, rank))
    return rows


def _judge_claim(plan: Plan, selection: str, claim: Claim, values: Values, ranks: Ranks) -> ClaimResult:
    than = claim.than or plan.study.reference
    difference = paired_difference(values.get(claim.better, {}), values.get(than, {}))
    low = {claim.better, than} & set(ranks.get(claim.measure, {}))
    return ClaimResult(claim, than, selection, difference, UNDECIDED if low else judge_claim(claim, difference))


def _adjust_p_values(claims: list[ClaimResult]) -> list[ClaimResult]:
    """The claims with their p-values, adjusted for one another."""
    values = [None if each.claim.within is not None else p_value(each.difference) for each in claims]
    return [replace(each, holm=value) for each, value in zip(claims, adjust_holm(values), strict=True)]


def _means(runs: Sequence[Run], results: Sequence[Result], lines: Any) -> dict[str, list[float]]:
    """The mean over seeds of what `lines` finds in a result, by arm; of lines as long as the first."""
    found: dict[str, list[list[float]]] = {}
    for run, result in zip(runs, results, strict=True):
        for name, line in lines(result).items():
            found.setdefault(f"{run.arm.label}: {name}", []).append(line)
    return {
        name: np.mean([line for line in several if len(line) == len(several[0])], axis=0).tolist()
        for name, several in found.items()
    }


def _validation_curve(result: Result) -> dict[str, list[float]]:
    """Recall at 1 on held-out training classes, epoch by epoch; test classes are measured once."""
    log = result["training"][0]["log"]
    line = [record["validation_recall_at_1"] for record in log if "validation_recall_at_1" in record]
    return {"validation recall_at_1 by epoch": line} if line else {}


def _spectra(result: Result) -> dict[str, list[float]]:
    return {
        f"singular values, {each['split']} {each['view']}, {result['selection']}": each["spectrum"]
        for each in result["evaluations"]
        if "spectrum" in each
    }


def _dates(results: Sequence[Result]) -> tuple[str, str] | None:
    """All are in UTC, and so sorted as text."""
    dates = sorted(result["date"] for result in results if "date" in result)
    return (dates[0], dates[-1]) if dates else None


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
