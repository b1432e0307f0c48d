"""Max-normalised scores: every metric divided by its maximum over the settings of an objective."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.raising import raises
from tests.training.studies import toys
from training.studies.normalised import divide_by_maximum, summarise_settings
from training.studies.papers import find_studies, find_study
from training.studies.plan import Plan, adapt_to_dataset
from training.studies.render import as_html, as_markdown, to_json
from training.studies.report import build_report
from training.studies.study import R1, Arm, Measure, Study
from zoo.errors import RecipeError

NMI = Measure("nmi")
ARMS = tuple(
    Arm(f"{method} {sampler}", f"{method}-$backbone-$dataset")
    for method in ("margin", "triplet-r")
    for sampler in ("spc-2", "ddm")
)
MEANS = {
    R1: {"margin spc-2": 0.50, "margin ddm": 0.40, "triplet-r spc-2": 0.30, "triplet-r ddm": 0.60},
    NMI: {"margin spc-2": 0.60, "margin ddm": 0.75, "triplet-r spc-2": 0.40, "triplet-r ddm": 0.40},
}


def test_the_summary_is_that_of_hand_calculation() -> None:
    spc, ddm = summarise_settings(ARMS, (R1, NMI), MEANS)
    assert (spc.setting, ddm.setting) == ("spc-2", "ddm")
    # Quotients of spc-2: margin 0.50 / 0.50 and 0.60 / 0.75, triplet-r 0.30 / 0.60 and 0.40 / 0.40.
    assert spc.objectives == pytest.approx({"margin": 0.9, "triplet-r": 0.75})
    assert (spc.mean, spc.low, spc.high) == pytest.approx((0.825, 0.5, 1.0))
    assert spc.sd == pytest.approx(math.sqrt((0.175**2 + 0.025**2 + 0.325**2 + 0.175**2) / 3))
    # Quotients of ddm: margin 0.40 / 0.50 and 1, triplet-r 1 and 1.
    assert ddm.objectives == pytest.approx({"margin": 0.9, "triplet-r": 1.0})
    assert (ddm.mean, ddm.low, ddm.high, ddm.scores) == pytest.approx((0.95, 0.8, 1.0, 4))


def test_the_summary_does_not_depend_on_the_scale_of_a_metric() -> None:
    scaled = {R1: {label: 100 * value for label, value in MEANS[R1].items()}, NMI: MEANS[NMI]}
    for one, other in zip(
        summarise_settings(ARMS, (R1, NMI), MEANS), summarise_settings(ARMS, (R1, NMI), scaled), strict=True
    ):
        assert (one.mean, one.sd) == pytest.approx((other.mean, other.sd))


def test_missing_arms_and_metrics_without_a_positive_score_are_left_out() -> None:
    assert divide_by_maximum({}) == divide_by_maximum({"a": 0.0, "b": 0.0}) == {}
    (only,) = summarise_settings(ARMS[:1], (R1, NMI), {R1: {"margin spc-2": 0.5}, NMI: {"margin spc-2": 0.0}})
    assert (only.mean, only.sd, only.scores) == (1.0, 0.0, 1)
    assert summarise_settings(ARMS, (R1,), {}) == []


@pytest.mark.slow
def test_the_report_has_the_means_over_seeds_normalised(tmp_path: Path) -> None:
    study = Study("toys/normalised", "Samplers", "nowhere", ARMS, (R1,), seeds=2, normalised=(R1,))
    plan = Plan(study, "glyphs", 2)
    for run in plan.runs(tmp_path):
        toys.finish(run, MEANS[R1][run.arm.label] + (0.1 if run.seed else -0.1), [1.0])
    report = build_report(plan, tmp_path)
    spc, ddm = report.normalised
    assert spc.objectives == pytest.approx({"margin": 1.0, "triplet-r": 0.5})
    assert ddm.objectives == pytest.approx({"margin": 0.8, "triplet-r": 1.0})
    assert to_json(report)["normalised"][0]["mean"] == pytest.approx(0.75)
    assert "| spc-2 | 1.000 | 0.500 |" in as_markdown(report)
    assert "Normalised scores" in as_html(report)


def test_a_study_measures_what_it_sums_up() -> None:
    with raises(RecipeError, "no-results"):
        Study("toys/normalised", "Samplers", "nowhere", ARMS, (R1,), normalised=(NMI,))


def test_figures_2_and_3_have_the_objectives_and_metrics_of_the_paper() -> None:
    metrics = {"recall_at_1", "recall_at_2", "nmi", "map_by_class", "f1_neighbours"}
    figure_3 = find_study("revisiting/figure-3")
    assert {arm.recipe.partition("-$")[0] for arm in figure_3.arms} == {
        *("margin", "triplet-r", "proxynca", "ms", "histogram", "softmax")
    }
    assert len(figure_3.arms) == 6 * 7
    on_sop = adapt_to_dataset(Plan(figure_3, "sop", 1)).study
    assert {m.metric for m in on_sop.normalised} > {
        "recall_at_1",
        "recall_at_10",
        "nmi",
        "map_by_class",
        "f1_neighbours",
    }
    assert "recall_at_2" not in {m.metric for m in on_sop.normalised}
    figure_2 = [study for dataset in ("glyphs", "cub") for study in find_studies("revisiting/figure-2", dataset)]
    for study in (figure_3, *figure_2):
        assert {measure.metric for measure in study.normalised} == metrics
        assert len({arm.recipe for arm in study.arms}) == (6 if study is figure_3 else 5)
