"""Trends over the arms' places: by hand, against SciPy, and in every report format."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.toys import finish
from tests.zoo.report.test_model import Reader
from training.losses import LOSSES as MODULES
from training.overrides import resolve
from training.recipe import Recipe
from training.studies.papers import STUDIES
from training.studies.papers.years import LOSSES, Loss
from training.studies.plan import Plan
from training.studies.render import as_html, as_markdown, to_json
from training.studies.report import build_report
from training.studies.runner import adoptable_recipes
from training.studies.statistics import FAILS, HOLDS
from training.studies.study import MAP_AT_R, R1, Arm, Measure, Trend, resolve_recipes
from training.studies.trends import slopes_of, spearmans_of
from zoo.errors import RecipeError
from zoo.evaluation.statistics import UNDECIDED

SCORES = {"margin": (0.60, 0.62, 0.61), "contrastive": (0.65, 0.66, 0.66), "ms": (0.63, 0.66, 0.65)}
NAMES = ("margin", "contrastive", "ms", "pa")
YEARS = {"margin": 2006.0, "contrastive": 2015.0, "ms": 2020.0}


def plan_with(tmp_path: Path, trends: tuple[Trend, ...], labels: tuple[str, ...] = tuple(SCORES)) -> Plan:
    arms = tuple(Arm(label, f"{label}-$backbone-$dataset", x=YEARS[label]) for label in SCORES)
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=(), x="year", trends=trends, correlate=False)
    plan = dataclasses.replace(toys.plan(tmp_path, seeds=3), study=study)
    for run in plan.runs(tmp_path):
        if run.arm.label in labels:
            finish(run, SCORES[run.arm.label][run.seed], [0.7, 0.3])
    return plan


def test_slopes_by_hand() -> None:
    """Places -1, 0, 1 about their mean: the slope is half of the last value minus the first."""
    places = {"a": 2000.0, "b": 2001.0, "c": 2002.0}
    values = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.9, 1: 0.1}, "c": {0: 0.7, 1: 0.4, 2: 0.9}}
    assert slopes_of(places, values) == pytest.approx([0.1, -0.05])
    # Ranks 1 3 2 with 1 2 3: 1 - 6 (0 + 1 + 1) / (3 x 8); and 3 1 2 with 1 2 3: 1 - 6 (4 + 1 + 1) / 24.
    assert spearmans_of(places, values) == pytest.approx([0.5, -0.5])


def test_slopes_and_correlations_are_scipys() -> None:
    draw = np.random.default_rng(0)
    years = [2006.0, 2015.0, 2017.0, 2017.0, 2019.0, 2019.0, 2020.0]
    lines = draw.uniform(0.4, 0.8, (4, 7)).round(1)  # rounded, so that values are equal now and then
    places = {str(i): year for i, year in enumerate(years)}
    values = {str(i): dict(enumerate(lines[:, i].tolist())) for i in range(7)}
    assert slopes_of(places, values) == pytest.approx([stats.linregress(years, line).slope for line in lines])
    assert spearmans_of(places, values) == pytest.approx([stats.spearmanr(years, line).statistic for line in lines])


def test_too_few_arms_or_one_place_make_no_trend() -> None:
    values = {name: {0: 0.5, 1: 0.6} for name in "abc"}
    assert slopes_of({"a": 2006.0, "b": 2015.0}, values) == []
    assert slopes_of(dict.fromkeys("abc", 2006.0), values) == []
    assert slopes_of({"a": 1.0, "b": 2.0, "c": 3.0}, values) == pytest.approx([0, 0])
    assert spearmans_of({"a": 1.0, "b": 2.0, "c": 3.0}, values) == []  # equal arms have no order


def test_the_report_has_the_slope_its_interval_and_the_slopes_without_one_arm(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, (Trend("newer is better"), Trend("newer is worse", MAP_AT_R, lower=True)))
    rising, falling = build_report(plan, tmp_path).trends
    lines = np.array(list(SCORES.values())).T
    slopes = [float(stats.linregress(list(YEARS.values()), line).slope) for line in lines]
    assert rising.slope is not None
    assert rising.slope.mean == pytest.approx(statistics.fmean(slopes))
    assert rising.slope.interval == pytest.approx(
        stats.t.interval(0.95, 2, np.mean(slopes), stats.sem(slopes)), abs=1e-5
    )
    years, means = np.array(list(YEARS.values())), lines.mean(0)
    away = years - years.mean()
    slope = away @ means / (away @ away)
    left = means - means.mean() - slope * away
    half = 12.7062 * (left @ left / 1 / (away @ away)) ** 0.5  # Student's t with 3 - 2 degrees of freedom
    assert rising.over_arms == pytest.approx((slope - half, slope + half), rel=1e-5)
    assert (rising.verdict, falling.verdict, rising.arms) == (UNDECIDED, UNDECIDED, 3)  # three arms make no line
    assert rising.left_out is None  # two arms are too few
    assert [estimate.trend.measure for estimate in (rising, falling)] == [R1, MAP_AT_R]


def test_a_trend_that_depends_on_one_arm_is_undecided(tmp_path: Path) -> None:
    """Four arms at places -3, -1, 1, 3 about their mean; without the last the others fall from place to place."""
    arms = tuple(
        Arm(name, f"{name}-$backbone-$dataset", x=x) for name, x in zip(NAMES, (0.0, 2.0, 4.0, 6.0), strict=True)
    )
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=(), x="year", trends=(Trend("newer is better"),))
    plan = dataclasses.replace(toys.plan(tmp_path), study=study)
    for run in plan.runs(tmp_path):
        finish(
            run, dict(zip(NAMES, (0.3, 0.2, 0.1, 0.9), strict=True))[run.arm.label] * (1 + 0.01 * run.seed), [0.7, 0.3]
        )
    (trend,) = build_report(plan, tmp_path).trends
    assert trend.slope is not None
    assert trend.slope.mean == pytest.approx((-3 * 0.3 - 0.2 + 0.1 + 3 * 0.9) / 20 * 1.005)
    assert trend.slope.interval is not None
    assert trend.slope.interval[0] > 0
    assert trend.left_out is not None
    assert trend.left_out[0] == pytest.approx(-0.05 * 1.005)  # from .3 to .1 over 4
    assert trend.left_out[1] > 0
    assert trend.verdict == UNDECIDED


@pytest.mark.parametrize(("last", "verdicts"), [(0.41, (HOLDS, FAILS)), (0.10, (UNDECIDED, UNDECIDED))])
def test_a_trend_holds_if_it_does_over_seeds_and_over_arms(
    last: float, verdicts: tuple[str, str], tmp_path: Path
) -> None:
    """Seeds differ by 1 %. On the line .1, .2, .3, .41 the slope is sure; that of .1, .2, .3, .1 is not."""
    arms = tuple(
        Arm(name, f"{name}-$backbone-$dataset", x=x) for name, x in zip(NAMES, (0.0, 2.0, 4.0, 6.0), strict=True)
    )
    trends = Trend("newer is better"), Trend("newer is worse", lower=True)
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=(), x="year", trends=trends)
    plan = dataclasses.replace(toys.plan(tmp_path), study=study)
    for run in plan.runs(tmp_path):
        finish(
            run, dict(zip(NAMES, (0.1, 0.2, 0.3, last), strict=True))[run.arm.label] * (1 + 0.01 * run.seed), [0.7, 0.3]
        )
    assert tuple(trend.verdict for trend in build_report(plan, tmp_path).trends) == verdicts


def test_an_unmeasured_trend_is_undecided(tmp_path: Path) -> None:
    (trend,) = build_report(plan_with(tmp_path, (Trend("newer is better"),), ("margin", "ms")), tmp_path).trends
    assert (trend.slope, trend.spearman, trend.left_out, trend.verdict, trend.arms) == (None, None, None, UNDECIDED, 2)


def test_all_report_formats_have_the_trend(tmp_path: Path) -> None:
    report = build_report(plan_with(tmp_path, (Trend("newer is better"),)), tmp_path)
    assert report.correlations == []  # the trend covers the axis already
    text = as_markdown(report)
    assert "## By year" in text
    slopes = [stats.linregress(list(YEARS.values()), line).slope for line in zip(*SCORES.values(), strict=True)]
    low, high = stats.t.interval(0.95, 2, np.mean(slopes), stats.sem(slopes))
    slope, bounds = f"{np.mean(slopes):+.4f}", f"{low:+.4f} to {high:+.4f}"
    ranks = (0.5 + 3**0.5 / 2 + 0.5) / 3  # 1 3 2; 1 and twice 2.5; 1 3 2
    assert f"| newer is better | test recall_at_1 | 3 | {slope} | {bounds} | {ranks:+.2f} |" in text
    (facts,) = json.loads(json.dumps(to_json(report)))["trends"]
    assert (facts["trend"], facts["measure"], facts["verdict"]) == ("newer is better", "test recall_at_1", "undecided")
    reader = Reader(as_html(report))
    for says in ("newer is better: undecided", f"slope {slope} ({bounds}) a year, 3 seeds", "margin, 2006"):
        assert says in reader.text
    assert "R@1 on test of every arm by year" in [dict(attributes).get("alt") for _, attributes in reader.tags]


@pytest.mark.slow
def test_one_seed_and_arms_of_one_year_are_drawn_too(tmp_path: Path) -> None:
    arms = tuple(Arm(name, f"{name}-$backbone-$dataset", x=2015.0 + (name == "ms")) for name in SCORES)
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=(), x="year", trends=(Trend("newer is better"),))
    plan = dataclasses.replace(toys.plan(tmp_path, seeds=1), study=study)
    for run in plan.runs(tmp_path):
        finish(run, SCORES[run.arm.label][0], [0.7, 0.3])
    report = build_report(plan, tmp_path)
    (trend,) = report.trends
    assert trend.slope is not None
    assert (trend.slope.mean, trend.slope.interval) == (pytest.approx(0.63 - (0.60 + 0.65) / 2), None)
    assert trend.verdict == UNDECIDED
    assert "slope +0.0050 a year, 1 seed." in Reader(as_html(report)).text


def test_a_trend_of_an_unmeasured_metric_is_refused() -> None:
    with raises(RecipeError, "no-results") as caught:
        dataclasses.replace(toys.STUDY, trends=(Trend("newer is better", Measure("nmi")),))
    assert "test nmi" in str(caught.value)


TABLE_6 = {
    **dict.fromkeys(("contrastive", "triplet"), 2006),
    **dict.fromkeys(("proxynca", "margin", "softmax"), 2017),
    "cosface": 2018,
    **dict.fromkeys(("arcface", "fastap", "snr", "ms", "softtriple"), 2019),
}
"""Years of the losses in table 6 of Reality."""


def test_years_are_those_that_reality_prints() -> None:
    assert {loss.tuned[0]: loss.year for loss in LOSSES if loss.tuned[:1] and loss.tuned[0] in TABLE_6} == TABLE_6


OTHERS = [loss for loss in LOSSES if not loss.tuned or loss.tuned[0] not in TABLE_6]


@pytest.mark.parametrize("loss", OTHERS, ids=[loss.small for loss in OTHERS])
def test_years_of_other_losses_match_their_docstrings(loss: Loss) -> None:
    recipe = resolve(f"{loss.small}-conv4-glyphs")
    assert isinstance(recipe, Recipe)
    cited = sys.modules[MODULES[recipe.objective.loss].__module__].__doc__
    assert cited is not None
    assert f"({loss.paper.partition(', ')[0]} {loss.year}" in cited


def test_years_are_in_order_and_the_classics_first() -> None:
    assert [loss.year for loss in LOSSES] == sorted(loss.year for loss in LOSSES)
    for name, first in (("claims/over-the-years", "triplet-s"), ("reality/over-the-years", "triplet")):
        study = STUDIES[name]
        assert study.labels[:2] == ["contrastive", first]
        assert {(c.better, c.than) for c in study.claims} == {
            (new, old) for new in study.labels[2:] for old in study.labels[:2]
        }


def test_finished_runs_of_other_studies_are_adoptable() -> None:
    """One run per loss and seed of the claims on Omniglot, for every loss that both studies have."""
    adoptable = adoptable_recipes(
        STUDIES["claims/over-the-years"], [Path(__file__).parents[3] / "docs" / "studies" / "claims-omniglot"]
    )
    assert len(adoptable) > 5 * 8
    tuned, tables = STUDIES["reality/over-the-years"], STUDIES["reality/tables-3-to-5"]
    assert set(tuned.labels) == set(tables.labels)
    assert set(tuned.measures) <= set(tables.measures)
    for arm in tuned.arms:
        (other,) = [candidate for candidate in tables.arms if candidate.label == arm.label]
        assert resolve_recipes(tuned, arm, "cub", 0) == resolve_recipes(tables, other, "cub", 0)
