"""What seeds say: intervals and correlations against SciPy, verdicts by hand, the report of finished runs."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.raising import raises
from tests.training.studies import toys
from tests.zoo.report.test_model import Reader
from training.recipes import FEATURES
from training.studies.papers import find_study
from training.studies.plan import Plan, Run
from training.studies.render import as_csv, as_html, as_markdown, to_json, write_report
from training.studies.report import build_report, published_score
from training.studies.results import value_of
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
    summarise,
)
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Claim, Measure, resolve_recipes
from zoo.errors import TrainingError
from zoo.files import write_json
from zoo.models.published import published_tables

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 31])
def test_intervals_are_student_s(n: int) -> None:
    values = DRAW.normal(0.6, 0.02, n)
    found = summarise(values.tolist())
    assert found.interval == pytest.approx(stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values)), abs=1e-5)
    assert (found.n, found.mean) == (n, pytest.approx(values.mean()))
    assert found.sd == pytest.approx(values.std(ddof=1))
    assert summarise([0.5]) == Summary(1, 0.5, None, None)


def test_paired_differences_are_those_of_the_paired_t_test() -> None:
    a, b = DRAW.normal(0.6, 0.1, (2, 6)) + DRAW.normal(0, 0.01, 6)
    found = paired_difference(dict(enumerate(a)), {**dict(enumerate(b)), 9: 0.1})
    assert found is not None
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found.interval == pytest.approx((low, high), abs=1e-4)
    assert found.n == 6
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def difference(low: float, high: float) -> Summary:
    return Summary(5, (low + high) / 2, 0.1, (low, high))


@pytest.mark.parametrize(
    ("claim", "low", "high", "expected"),
    [
        ({}, 0.01, 0.02, HOLDS),
        ({}, -0.02, -0.01, FAILS),
        ({}, -0.01, 0.02, UNDECIDED),
        ({}, 0.0, 0.0, UNDECIDED),
        ({"lower": True}, -0.02, -0.01, HOLDS),
        ({"lower": True}, 0.01, 0.02, FAILS),
        ({"lower": True}, -0.01, 0.02, UNDECIDED),
        ({"within": 0.03}, -0.02, 0.03, HOLDS),
        ({"within": 0.03}, 0.031, 0.05, FAILS),
        ({"within": 0.03}, -0.05, -0.04, FAILS),
        ({"within": 0.03}, 0.02, 0.04, UNDECIDED),
        ({"within": 0.03}, -0.1, 0.1, UNDECIDED),
        # Wider than the difference itself: .008 against .005, .012 against .01; as wide is not wider.
        ({}, 0.001, 0.009, UNDECIDED),
        ({}, -0.016, -0.004, UNDECIDED),
        ({}, 0.25, 0.75, HOLDS),
        ({"lower": True}, -0.009, -0.001, UNDECIDED),
        ({"lower": True}, 0.001, 0.009, UNDECIDED),
        ({"within": 0.03}, 0.04, 0.14, UNDECIDED),
        ({"within": 0.03}, -0.001, 0.009, HOLDS),
    ],
)
def test_verdicts_by_hand(claim: dict[str, Any], low: float, high: float, expected: str) -> None:
    assert judge_claim(Claim("x", "a", **claim), difference(low, high)) == expected


def test_one_seed_decides_nothing() -> None:
    assert judge_claim(Claim("x", "a"), summarise([0.5])) == UNDECIDED
    assert judge_claim(Claim("x", "a"), None) == UNDECIDED


def test_p_values_are_those_of_the_paired_t_test() -> None:
    a, b = DRAW.normal(0.6, 0.1, (2, 6))
    assert p_value(paired_difference(dict(enumerate(a)), dict(enumerate(b)))) == pytest.approx(
        stats.ttest_rel(a, b).pvalue
    )
    assert p_value(summarise([0.1, 0.1])) == 0
    assert p_value(summarise([0.0, 0.0])) == 1
    assert (p_value(summarise([0.1])), p_value(None)) == (None, None)


def test_holm_s_correction_by_hand() -> None:
    """Smallest first: 4 x 0.01, then 3 x 0.013 which may not be less, then 2 x 0.02 likewise, then 0.9."""
    assert adjust_holm([0.02, None, 0.01, 0.9, 0.013]) == pytest.approx([0.04, None, 0.04, 0.9, 0.04])
    assert adjust_holm([0.3, 0.4]) == pytest.approx([0.6, 0.6])
    assert adjust_holm([None, 0.8, 0.9]) == [None, 1.0, 1.0]


def test_correlations_are_pearson_s() -> None:
    a, b = DRAW.normal(size=(2, 9))
    assert pearson(a.tolist(), b.tolist()) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert pearson([1, 2], [1, 2]) is None
    assert pearson([1, 1, 1], [1, 2, 3]) is None


def finish(run: Run, r1: float, spectrum: list[float]) -> None:
    """A result as a run writes it, without the run."""
    test = {"recall_at_1": r1, "map_at_r": r1 / 2}
    evaluations = [
        {"split": "test", "view": "embedding", "metrics": test, "spectrum": spectrum},
        {"split": "train", "view": "embedding", "metrics": {"spectral_decay": 1 - r1}, "spectrum": spectrum},
        {"split": "test", "view": "features", "metrics": {"recall_at_1": r1}, "spectrum": spectrum},
    ]
    log = [{"epoch": 1, "validation_recall_at_1": r1}, {"epoch": 2, "validation_recall_at_1": 2 * r1}]
    training = [{"epochs": 2, "measured_epoch": 2, "seconds": 30.0, "precision": "fp32", "log": log}]
    facts = {"device": "cpu", "hardware": {"cpu": "x"}, "versions": {"torch": "2"}, "commit": "abc"}
    head = {"arm": run.arm.label, "seed": run.seed, "selection": run.selection, "recipes": run.digests}
    run.finish({**head, "evaluations": evaluations, "training": training, **facts})


SCORES = {"margin": (0.60, 0.62, 0.61), "contrastive": (0.65, 0.66, 0.66)}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = toys.plan(tmp_path, seeds=3)
    for run in plan.runs(tmp_path):
        finish(run, SCORES[run.arm.label][run.seed], [0.7, 0.3])
    return plan


def test_the_report_compares_every_arm_with_the_baseline(plan: Plan, tmp_path: Path) -> None:
    report = build_report(plan, tmp_path)
    rows = {(row.arm, str(row.measure)): row for row in report.rows}
    row = rows["contrastive", "test recall_at_1"]
    assert row.value.mean == pytest.approx(np.mean(SCORES["contrastive"]))
    assert row.difference is not None
    assert row.difference.mean == pytest.approx(0.14 / 3)
    expected = stats.ttest_rel(SCORES["contrastive"], SCORES["margin"]).confidence_interval(0.95)
    assert row.difference.interval == pytest.approx(tuple(expected), abs=1e-4)
    assert rows["margin", "test recall_at_1"].difference is None
    assert [judged.verdict for judged in report.claims] == [HOLDS, HOLDS]
    found = {(a, b): value for _, a, b, value in report.correlations}
    assert found["test recall_at_1", "train spectral_decay"] == pytest.approx(-1)
    assert found["test recall_at_1", "test map_at_r"] == pytest.approx(1)
    assert found["place (margin)", "test recall_at_1"] is None  # a recipe in one place has no slope
    assert report.curves["margin: validation recall_at_1 by epoch"] == pytest.approx([0.61, 1.22])
    assert report.spectra["margin: singular values, test features, last"] == pytest.approx([0.7, 0.3])
    assert report.seconds == 180
    assert (report.missing, report.failures) == ([], {})


def test_both_selections_are_compared_by_seed(tmp_path: Path) -> None:
    both = dataclasses.replace(toys.plan(tmp_path, seeds=3), selections=("last", "validation"))
    shift = {"margin": (0.01, 0.012, 0.011), "contrastive": (0.05, -0.02, 0.01)}
    for run in both.runs(tmp_path):
        more = shift[run.arm.label][run.seed] if run.selection == "validation" else 0
        finish(run, SCORES[run.arm.label][run.seed] + more, [0.7, 0.3])
    report = build_report(both, tmp_path)
    found = {(each.arm, str(each.measure)): each for each in report.selection_effects}
    for arm, said in (("margin", "higher"), ("contrastive", "undecided")):
        each, expected = found[arm, "test recall_at_1"], stats.ttest_1samp(shift[arm], 0).confidence_interval(0.95)
        assert each.difference.interval == pytest.approx(tuple(expected), abs=1e-4)
        assert each.verdict == said
    assert found["margin", "train spectral_decay"].verdict == "lower"
    assert report.provenance_note == ""
    text = as_markdown(report)
    assert "| margin | test recall_at_1 | +0.0110 | +0.0085 to +0.0135 | higher |" in text
    assert "Validation-selected beside the last epoch" in Reader(as_html(report)).text
    assert to_json(report)["moved"][0]["arm"] == "margin"


def test_that_selections_were_made_otherwise_is_said(tmp_path: Path) -> None:
    both = dataclasses.replace(toys.plan(tmp_path, seeds=2), selections=("last", "validation"))
    for run in both.runs(tmp_path):
        finish(run, 0.5, [1.0])
        if run.selection == "validation":
            toys.change(run, commit="def")
    assert (
        build_report(both, tmp_path).provenance_note
        == "The two were made with other commits, which may be part of the difference."
    )
    assert "with other commits" in as_markdown(build_report(both, tmp_path))


def test_places_on_the_axis_are_compared_within_a_recipe(tmp_path: Path) -> None:
    arms = tuple(Arm(f"{m} {x}", f"{m}-$backbone-$dataset", (), x) for m in ("margin", "ms") for x in (1, 2))
    plan = dataclasses.replace(toys.plan(tmp_path), study=dataclasses.replace(toys.STUDY, arms=arms, claims=()))
    scores = dict(zip((arm.label for arm in arms), (0.1, 0.2, 0.9, 0.7), strict=True))
    for run in plan.runs(tmp_path):
        finish(run, scores[run.arm.label] + 0.01 * run.seed, [1.0])
    found = {(a, b): value for _, a, b, value in build_report(plan, tmp_path).correlations}
    assert found["place (margin)", "test recall_at_1"] == pytest.approx(
        stats.pearsonr([1, 1, 2, 2], [0.1, 0.11, 0.2, 0.21]).statistic
    )
    assert found["place (ms)", "test recall_at_1"] == pytest.approx(
        stats.pearsonr([1, 1, 2, 2], [0.9, 0.91, 0.7, 0.71]).statistic
    )


def test_the_files_of_a_report_hold_its_numbers(plan: Plan, tmp_path: Path) -> None:
    report = build_report(plan, tmp_path)
    write_report(report, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(to_json(report)))
    markdown = (tmp_path / "report.md").read_text()
    assert markdown == as_markdown(report)
    assert "| contrastive | 2 | 3 | 0.6567 ± 0.0058 |" in markdown
    assert "| contrastive beats margin | contrastive - margin | test recall_at_1 | +0.0467 |" in markdown
    rows = list(csv.DictReader(as_csv(report).splitlines()))
    assert len(rows) == 2 * 4 + 4
    assert {row["arm"] for row in rows} == {"margin", "contrastive", "contrastive - margin"}
    assert float(rows[0]["mean"]) == pytest.approx(0.61)
    assert (
        "Of 2 claims 2 hold, 0 do not, 0 are undecided. After Holm's correction 1 of those that hold stand." in markdown
    )
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert all(line.count("|") > 3 for line in tables)


def test_differences_are_promised_only_where_the_reference_was_chosen(plan: Plan, tmp_path: Path) -> None:
    plan.runs(tmp_path)
    assert "differences to margin are paired by seed" in as_markdown(build_report(plan, tmp_path))
    alone = as_markdown(build_report(dataclasses.replace(plan, only=("contrastive",)), tmp_path))
    assert "no differences, which would be to margin: that arm was not chosen." in alone
    assert "paired by seed" not in alone


def test_a_study_that_is_not_finished_reports_what_it_has(plan: Plan, tmp_path: Path) -> None:
    runs = plan.runs(tmp_path)
    toys.forget(runs[-1])
    write_json(runs[-1].folder / "failure.json", {"error": "TrainingError", "message": "nan"})
    report = build_report(plan, tmp_path)
    assert report.missing == ["contrastive, seed 2"]
    assert report.failures == {"contrastive, seed 2": "nan"}
    (judged, _) = report.claims
    assert judged.difference is not None
    assert judged.difference.n == 2
    assert "Failed: contrastive, seed 2: nan" in as_markdown(report)
    for run in runs[:-1]:
        toys.forget(run)
    empty = build_report(plan, tmp_path)
    assert empty.rows == []
    assert {judged.verdict for judged in empty.claims} == {UNDECIDED}
    assert (
        "| contrastive beats margin | contrastive - margin | test recall_at_1 |  |  | 0 |  | undecided |"
        in as_markdown(empty)
    )


def test_the_values_of_the_runs_are_in_the_report(plan: Plan, tmp_path: Path) -> None:
    values = to_json(build_report(plan, tmp_path))["values"]["last"]["test recall_at_1"]
    assert {arm: tuple(seeds.values()) for arm, seeds in values.items()} == SCORES
    (difference, close) = to_json(build_report(plan, tmp_path))["claims"]
    assert difference["p_holm"] == pytest.approx(stats.ttest_rel(SCORES["contrastive"], SCORES["margin"]).pvalue)
    assert close["p_holm"] is None


def test_a_run_that_lacks_a_measure_is_named(plan: Plan, tmp_path: Path) -> None:
    result = plan.runs(tmp_path)[0].result()
    with raises(TrainingError, "missing-measure") as caught:
        value_of(result, Measure("nmi"))
    assert "margin with seed 0 has no test nmi" in str(caught.value)
    assert value_of(result, R1) == 0.60


def test_published_numbers_stand_beside_ours(tmp_path: Path) -> None:
    table_2 = find_study("revisiting/table-2")
    arms = tuple(arm for arm in table_2.arms if arm.label in ("margin", "r-margin"))
    study = dataclasses.replace(table_2, arms=arms, claims=(), measures=(R1, MAP_AT_R, DECAY))
    plan = Plan(study, "cub", 2)
    for run in plan.runs(tmp_path):
        finish(run, 0.6, [1.0])
    report = build_report(plan, tmp_path)
    found = {(row.arm, str(row.measure)): row.published for row in report.rows}
    assert found["margin", "test recall_at_1"] == 0.6309
    assert found["r-margin", "train spectral_decay"] == 0.130
    assert found["margin", "test map_at_r"] is None
    markdown = as_markdown(report)
    assert "| margin | 2 | 0.6000 ± 0.0000 | 0.6000 to 0.6000 |  |  | 0.6309 ± 0.0046 |" in markdown
    assert "| +0.0000 to +0.0000 | 0.1300 |" in markdown  # of spectral decay the paper gives no deviation
    assert "published 0.6309 ± 0.0046" in Reader(as_html(report)).text
    assert {(row["published"], row["published_sd"]) for row in to_json(report)["rows"]} >= {(0.6309, 0.0046)}
    assert "revisiting-2 (arXiv:2002.08473): best epoch on the test set" in markdown
    changed = dataclasses.replace(plan, settings=("schedule.epochs=1",))
    assert all(published_score(changed, arm, R1) is None for arm in arms)


def test_an_arm_with_settings_has_the_published_number_of_the_row_that_it_names() -> None:
    """Revisiting, table 1: R@1 of ImageNet's weights with a random layer."""
    study = find_study("revisiting/table-1-published")
    printed = {
        "cub": {"gn": 0.4541, "ibn": 0.4878, "r50": 0.4377},
        "cars": {"gn": 0.3531, "ibn": 0.4336, "r50": 0.3639},
        "sop": {"gn": 0.4428, "ibn": 0.4905, "r50": 0.4865},
    }
    for dataset, expected in printed.items():
        plan = Plan(study, dataset, 1)
        found = {arm.label: published_score(plan, arm, R1) for arm in study.arms}
        assert {label: each[1].value for label, each in found.items() if each is not None} == expected
        assert all(published_score(plan, arm, Measure("nmi")) is None for arm in study.arms)
    assert "not trained: ImageNet weights and a random layer of 128" in as_markdown(build_report(plan, Path("nowhere")))
    for other in (Plan(study, "inshop", 1), Plan(study, "cub", 1, settings=("schedule.epochs=1",))):
        assert all(published_score(other, arm, R1) is None for arm in study.arms)


def test_ensembles_heads_and_settings_that_change_nothing_have_their_published_numbers() -> None:
    def printed(study: str, dataset: str, arm: str, measure: Measure = R1) -> float | None:
        plan = Plan(find_study(study), dataset, 1)
        found = published_score(plan, next(each for each in plan.study.arms if each.label == arm), measure)
        return None if found is None else found[1].value

    assert printed("group/ensembles", "cub", "5 models") == 0.669
    assert printed("group/ensembles", "cars", "2 models", Measure("nmi")) == 0.726
    assert printed("group/ensembles", "cub", "one model") == 0.655
    assert printed("group/ensembles", "cub", "2 models") is None  # NMI alone is at hand
    gap = "sharing/generalisation-gap"
    heads = {view: printed(gap, "cars", "shared", Measure("recall_at_1", "test", view)) for view in PARTS}
    assert heads == {"discriminative": 0.821, "shared": 0.862, "random head": None, "features": None}
    assert printed(gap, "cars", "shared") == printed("sharing/ablation", "cars", "shared") == 0.87
    assert printed(gap, "cars", "shared-separate", Measure("recall_at_1", "test", "shared")) is None
    # Values of a sweep that are the recipe's own, and others.
    assert printed("revisiting/figure-2-dimension", "cub", "margin 128") == 0.6309
    assert printed("revisiting/figure-2-dimension", "cub", "margin 64") is None
    assert printed("group/anchors", "cub", "anchors 2") == 0.655
    assert printed("group/anchors", "cub", "anchors 1") is None


PARTS = ("discriminative", "shared", "random head", "features")


def test_the_studies_that_published_numbers_name_measure_them() -> None:
    named = [score for table in published_tables() for score in table.scores if score.study]
    assert {score.study for score in named} == {
        "revisiting/table-1-published",
        "group/ensembles",
        "sharing/generalisation-gap",
    }
    for score in named:
        study = find_study(score.study)
        (arm,) = [each for each in study.arms if each.label == score.arm]
        assert Measure(score.metric, score.split, score.view) in study.measures
        recipes = resolve_recipes(study, arm, score.dataset, 0)
        heads = [head.dim for recipe in recipes for head in recipe.heads if score.view in ("embedding", head.name)]
        assert score.dim == (sum(heads) or FEATURES[score.backbone] * len(recipes))
        assert {recipe.backbone.name for recipe in recipes} == {score.backbone}
