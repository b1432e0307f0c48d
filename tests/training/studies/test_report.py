"""The report of finished runs: scores, differences, verdicts, published numbers, and its files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.toys import SCORES, finish
from tests.zoo.report.test_model import Reader
from training.recipes.common import TRUNKS
from training.studies.own import own_study
from training.studies.papers import find_study
from training.studies.plan import Plan, read_plan, write_plan
from training.studies.render import as_html, as_markdown, to_json, write_report
from training.studies.report import build_report, published_score
from training.studies.results import value_of
from training.studies.statistics import FAILS, HOLDS, LOWER
from training.studies.study import DECAY, MAP_AT_R, R1, Arm, Measure, resolve_recipes, supports
from zoo.errors import TrainingError, UsageError
from zoo.evaluation.statistics import BETTER, EQUIVALENT, UNDECIDED
from zoo.files import write_json
from zoo.models.published import published_tables


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
    correlations = {(a, b): value for _, a, b, value in report.correlations}
    assert correlations["test recall_at_1", "train spectral_decay"] == pytest.approx(-1)
    assert correlations["test recall_at_1", "test map_at_r"] == pytest.approx(1)
    assert correlations["place (margin)", "test recall_at_1"] is None  # a recipe in one place has no slope
    epochs, curve = zip(*report.curves["margin: validation recall_at_1 by epoch"], strict=True)
    assert epochs == (1, 2)
    assert curve == pytest.approx([0.61, 1.22])
    assert report.spectra["margin: singular values, test features, last"] == pytest.approx([0.7, 0.3])
    assert report.seconds == 180
    assert (report.missing, report.failures) == ([], {})


def test_arms_whose_heads_are_replaced_are_marked(plan: Plan, tmp_path: Path) -> None:
    assert "LDA" not in as_markdown(build_report(plan, tmp_path)) + as_html(build_report(plan, tmp_path))
    texts = ("trained=margin-conv4-glyphs", "replaced=margin-conv4-glyphs,head_end=lda")
    own = dataclasses.replace(plan, study=own_study(texts), settings=())
    for run in own.runs(tmp_path / "own"):
        finish(run, 0.5, [0.7, 0.3])
    report = build_report(own, tmp_path / "own")
    heads = {"trained": "method", "replaced": "LDA"}
    assert {row["arm"]: row["head"] for row in to_json(report)["rows"]} == heads
    for label, head in heads.items():
        assert f"| {label} | {head} |" in as_markdown(report)
    assert "LDA" in as_html(report)


def test_steps_and_images_of_arms_are_counted(plan: Plan, tmp_path: Path) -> None:
    """Runs of earlier versions do not record steps: the recipe has two per epoch, of 8 images."""
    counted = {"steps": 7, "images": 56}
    for run in plan.runs(tmp_path):
        if run.arm.label == "contrastive":
            toys.change(run, training=[{**record, **counted} for record in run.result()["training"]])
    report = build_report(plan, tmp_path)
    epochs = plan.runs(tmp_path)[0].result()["training"][0]["epochs"]
    assert report.budgets == {"margin": [(2 * epochs, 16 * epochs)], "contrastive": [(7, 56)]}
    for text in (as_markdown(report), as_html(report)):
        assert "56" in text
    assert to_json(report)["steps_and_images"]["contrastive"] == [(7, 56)]


def test_runs_by_an_older_definition_are_named(plan: Plan, tmp_path: Path) -> None:
    for run in plan.runs(tmp_path):
        older = {"method sharing": 1} if run.arm.label == "contrastive" else {}
        records = [recipe.record for recipe in run.recipes]
        toys.change(run, resolved=[{**old, "definitions": {**old["definitions"], **older}} for old in records])
    report = build_report(plan, tmp_path)
    assert {arm: [*changes] for arm, changes in report.outdated.items()} == {"contrastive": ["method sharing"]}
    for text in (as_markdown(report), as_html(report), to_json(report)["note"]):
        assert "method sharing" in text


@pytest.mark.slow
def test_both_selections_are_compared_by_seed(tmp_path: Path) -> None:
    both = dataclasses.replace(toys.plan(tmp_path, seeds=3), selections=("last", "validation"))
    shift = {"margin": (0.01, 0.012, 0.011), "contrastive": (0.05, -0.02, 0.01)}
    for run in both.runs(tmp_path):
        more = shift[run.arm.label][run.seed] if run.selection == "validation" else 0
        finish(run, SCORES[run.arm.label][run.seed] + more, [0.7, 0.3])
    report = build_report(both, tmp_path)
    effects = {(effect.arm, str(effect.measure)): effect for effect in report.selection_effects}
    for arm, direction in (("margin", BETTER), ("contrastive", UNDECIDED)):
        effect, expected = effects[arm, "test recall_at_1"], stats.ttest_1samp(shift[arm], 0).confidence_interval(0.95)
        assert effect.difference.interval == pytest.approx(tuple(expected), abs=1e-4)
        assert effect.verdict.word == direction
    assert effects["margin", "train spectral_decay"].verdict.word == LOWER
    assert report.provenance_note == ""
    text = as_markdown(report)
    assert "| margin | test recall_at_1 | +0.0110 | +0.0085 to +0.0135 | 0.022 | better |" in text
    assert "Validation-selected beside the last epoch" in Reader(as_html(report)).text
    assert to_json(report)["moved"][0]["arm"] == "margin"


def test_different_provenance_of_the_selections_is_reported(tmp_path: Path) -> None:
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
    correlations = {(a, b): value for _, a, b, value in build_report(plan, tmp_path).correlations}
    assert correlations["place (margin)", "test recall_at_1"] == pytest.approx(
        stats.pearsonr([1, 1, 2, 2], [0.1, 0.11, 0.2, 0.21]).statistic
    )
    assert correlations["place (ms)", "test recall_at_1"] == pytest.approx(
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
    assert "Of 2 claims 2 hold, 0 do not, 0 are undecided." in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert all(line.count("|") > 3 for line in tables)


def test_differences_are_announced_only_if_the_baseline_was_selected(plan: Plan, tmp_path: Path) -> None:
    plan.runs(tmp_path)
    assert "differences to margin are paired by seed" in as_markdown(build_report(plan, tmp_path))
    alone = as_markdown(build_report(dataclasses.replace(plan, only=("contrastive",)), tmp_path))
    assert "no differences, which would be to margin: that arm was not chosen." in alone
    assert "paired by seed" not in alone


def test_an_unfinished_study_reports_its_finished_runs(plan: Plan, tmp_path: Path) -> None:
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
        "| contrastive beats margin | contrastive - margin | test recall_at_1 |  |  | 0 |  | undecided | undecided |"
        in as_markdown(empty)
    )


def test_the_values_of_the_runs_are_in_the_report(plan: Plan, tmp_path: Path) -> None:
    values = to_json(build_report(plan, tmp_path))["values"]["last"]["test recall_at_1"]
    assert {arm: tuple(seeds.values()) for arm, seeds in values.items()} == SCORES
    (difference, close) = to_json(build_report(plan, tmp_path))["claims"]
    pair = SCORES["contrastive"], SCORES["margin"]
    assert difference["tests"]["p"] == pytest.approx(stats.ttest_rel(*pair).pvalue)
    assert (difference["tests"]["word"], difference["tests"]["p_equivalence"]) == (BETTER, None)
    assert (close["tests"]["margin"], close["tests"]["word"]) == (close["within"], EQUIVALENT)


def test_a_run_that_lacks_a_measure_is_named(plan: Plan, tmp_path: Path) -> None:
    result = plan.runs(tmp_path)[0].result()
    with raises(TrainingError, "no-results") as caught:
        value_of(result, Measure("nmi"))
    assert "margin with seed 0 has no test nmi" in str(caught.value)
    assert value_of(result, R1) == 0.60


def test_the_report_has_published_numbers(tmp_path: Path) -> None:
    table_2 = find_study("revisiting/table-2")
    arms = tuple(arm for arm in table_2.arms if arm.label in ("margin", "r-margin"))
    drawn = Measure("spectral_decay_drop_1", "train")
    study = dataclasses.replace(table_2, arms=arms, claims=(), measures=(R1, MAP_AT_R, DECAY, drawn))
    plan = Plan(study, "cub", 2)
    for run in plan.runs(tmp_path):
        finish(run, 0.6, [1.0])
    report = build_report(plan, tmp_path)
    published = {(row.arm, str(row.measure)): row.published for row in report.rows}
    assert published["margin", "test recall_at_1"] == 0.6309
    assert published["r-margin", "train spectral_decay_drop_1"] == 0.130  # figure 9 leaves out the largest value
    assert published["r-margin", "train spectral_decay"] is None
    assert published["margin", "test map_at_r"] is None
    markdown = as_markdown(report)
    assert "| margin | 2 | 0.6000 ± 0.0000 |  |  |  |  |  | 0.6309 ± 0.0046 |" in markdown
    assert "| +0.0000 |  |  | undecided | 0.1300 |" in markdown  # of spectral decay the paper gives no deviation
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
        scores = {arm.label: published_score(plan, arm, R1) for arm in study.arms}
        assert {label: score[1].value for label, score in scores.items() if score is not None} == expected
        assert all(published_score(plan, arm, Measure("nmi")) is None for arm in study.arms)
    assert "ImageNet weights and a random last layer" in as_markdown(build_report(plan, Path("nowhere")))
    for other in (Plan(study, "inshop", 1), Plan(study, "cub", 1, settings=("schedule.epochs=1",))):
        assert all(published_score(other, arm, R1) is None for arm in study.arms)


def test_ensembles_heads_and_settings_that_change_nothing_have_their_published_numbers() -> None:
    def printed(study: str, dataset: str, arm: str, measure: Measure = R1) -> float | None:
        plan = Plan(find_study(study), dataset, 1)
        (named,) = [candidate for candidate in plan.study.arms if candidate.label == arm]
        score = published_score(plan, named, measure)
        return None if score is None else score[1].value

    assert printed("group/ensembles", "cub", "5 models") == 0.669
    assert printed("group/ensembles", "cars", "2 models", Measure("nmi")) == 0.726
    assert printed("group/ensembles", "cub", "one model") == 0.655
    assert printed("group/ensembles", "cub", "2 models") == 0.658
    assert printed("group/ensembles", "cub", "2 models", Measure("map_at_r")) is None
    gap = "sharing/generalisation-gap"
    heads = {view: printed(gap, "cars", "shared", Measure("recall_at_1", "test", view)) for view in PARTS}
    assert heads == {"discriminative": 0.821, "shared": 0.862, "random head": 0.829, "features": 0.835}
    assert printed(gap, "cars", "shared") == printed("sharing/ablation", "cars", "shared") == 0.87
    assert printed(gap, "cars", "shared-separate", Measure("recall_at_1", "test", "shared")) is None
    assert printed(gap, "cars", "margin", Measure("recall_at_1", "train", "features")) == 0.87
    assert printed("sharing/table-4", "sop", "npair, 128") == 0.713
    assert printed("sharing/table-9", "cub", "margin, shared", Measure("nmi", "test", "shared")) is not None
    assert printed("sharing/table-6", "cars", "both") == 0.832
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
        "group/appendix-f-g-i",
        "group/table-3",
        "reality/pretrained",
        "reality/table-1",
        "reality/tables-3-to-5",
        "diva/table-2",
        "sharing/generalisation-gap",
        "sharing/table-4",
        "sharing/table-6",
        "sharing/table-7b",
        "sharing/table-8a",
        "sharing/table-8b",
        "sharing/table-9",
        "sharing/tables-1-to-3",
    }
    for score in named:
        study = find_study(score.study)
        (arm,) = [candidate for candidate in study.arms if candidate.label == score.arm]
        assert (score.split, score.view) in {(measure.split, measure.view) for measure in study.measures}
        assert supports(study, score.dataset)
        recipes = resolve_recipes(study, arm, score.dataset, 0)
        heads = [head.dim for recipe in recipes for head in recipe.heads if score.view in ("embedding", head.name)]
        reduced = score.view.removeprefix("features reduced to ")
        random = recipes[0].heads[0].dim if score.view == "random head" else 0
        assert score.dim == (
            sum(heads) or random or (int(reduced) if reduced.isdigit() else TRUNKS[score.backbone][1] * len(recipes))
        )
        assert {recipe.backbone.name for recipe in recipes} == {score.backbone}


def test_a_margin_of_the_plan_makes_arms_equivalent_and_cannot_change(plan: Plan, tmp_path: Path) -> None:
    """Contrastive is .04 to .05 above margin: better without a margin, and equivalent within .2."""
    for margins, word, claim in (((), BETTER, HOLDS), (("recall_at_1=.2",), EQUIVALENT, FAILS)):
        stated = dataclasses.replace(plan, margins=margins)
        report = build_report(stated, tmp_path)
        row = next(row for row in report.rows if (row.arm, row.measure) == ("contrastive", R1))
        assert row.verdict is not None
        assert (row.verdict.word, row.verdict.family) == (word, 1)
        assert (report.claims[0].tests.word, report.claims[0].verdict) == (word, claim)
        assert json.loads(json.dumps(to_json(report)))["margins"] == list(margins)
        assert all(("recall_at_1 0.2" in text) == bool(margins) for text in (as_markdown(report), as_html(report)))
    begun = Plan(find_study("claims/rho"), "glyphs", 1, margins=("recall_at_1=.2",))
    assert write_plan(begun, tmp_path / "begun") == read_plan(tmp_path / "begun") == begun
    with raises(TrainingError, "other-study"):
        write_plan(dataclasses.replace(begun, margins=()), tmp_path / "begun")
    for margin, code in (("nmi=.1", "unknown-name"), ("recall_at_1", "invalid-value")):
        with raises(UsageError, code):
            dataclasses.replace(plan, margins=(margin,))
