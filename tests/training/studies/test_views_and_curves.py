"""Arms with different heads in one study, the gap between training and test classes, and curves by epoch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.raising import raises
from tests.training.studies import toys
from training.methods.grouping import Grouping
from training.studies import papers
from training.studies.papers import STUDIES
from training.studies.plan import Plan, Run, RunSchedule
from training.studies.render import as_html, as_markdown, measured_text
from training.studies.report import build_report
from training.studies.results import value_of
from training.studies.runner import adoptable_recipes, create_study_context, perform_runs
from training.studies.study import GAP, R1, Arm, Measure, Study, lacks_view, resolve_recipes, supports
from zoo.errors import RecipeError

TRAIN = Measure("recall_at_1", "train")
OF_HEAD = Measure("recall_at_1", "test", "shared")
ONE = 'heads=[{"name": "discriminative", "dim": 16}]'
TWO = 'heads=[{"name": "discriminative", "dim": 8}, {"name": "shared", "dim": 8}]'
STUDY = Study(
    "toys/heads",
    "Two heads beside one",
    "nowhere",
    (
        Arm("alone", "shared-$backbone-$dataset", ("objective.method_args.arm=discriminative", ONE)),
        Arm("both", "shared-$backbone-$dataset", (TWO,)),
    ),
    (R1, TRAIN, Measure("recall_at_1", GAP), OF_HEAD),
    seeds=1,
    curves=True,
)
SETTINGS = tuple(setting for setting in toys.SETTINGS if setting != toys.HEAD)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(papers.STUDIES, STUDY.name, STUDY)
    return toys.images(tmp_path / "images")


def performed(plan: Plan, folder: Path) -> list[Run]:
    schedule = RunSchedule(plan, folder).begin()
    tally = perform_runs(schedule, schedule.runs, create_study_context(torch.device("cpu"), plan.data), str)
    assert not tally.failed
    return schedule.runs


def test_arms_are_measured_by_the_heads_that_they_have(tmp_path: Path, data: Path) -> None:
    plan = Plan(STUDY, "glyphs", 1, settings=SETTINGS, data=str(data))
    alone, both = performed(plan, tmp_path / "study")
    views = [{evaluation["view"] for evaluation in run.result()["evaluations"]} for run in (alone, both)]
    assert views == [{"embedding"}, {"embedding", "shared"}]
    report = build_report(plan, tmp_path / "study")
    rows = {(row.arm, row.measure): row.value.mean for row in report.rows}
    assert {arm for arm, measure in rows if measure == OF_HEAD} == {"both"}
    for arm in ("alone", "both"):
        assert rows[arm, Measure("recall_at_1", GAP)] == pytest.approx(rows[arm, R1] - rows[arm, TRAIN])
    assert report.measured == "32 queries of 8 classes"
    assert measured_text(report) in as_markdown(report)
    assert "test less training classes" in as_html(report)
    assert adoptable_recipes(STUDY, [tmp_path / "study"]) == {tuple(run.digests) for run in (alone, both)}
    # The training images by the run's own loop, and by the loop that measures splits.
    log = both.result()["training"][0]["log"]
    assert log[-1]["training_recall_at_1"] == pytest.approx(value_of(both.result(), TRAIN), abs=1 / 32)


@pytest.mark.slow
def test_curves_change_no_run_and_are_not_adopted_from_runs_without(tmp_path: Path, data: Path) -> None:
    plain = dataclasses.replace(STUDY, curves=False)
    plans = [
        Plan(study, "glyphs", 1, ("validation",), (*SETTINGS, "data.validation=0.25"), str(data))
        for study in (STUDY, plain)
    ]
    runs = [performed(plan, tmp_path / str(number))[1] for number, plan in enumerate(plans)]
    logs = [run.result()["training"][0]["log"] for run in runs]
    assert [epoch["loss"] for epoch in logs[0]] == [epoch["loss"] for epoch in logs[1]]
    assert runs[0].digests == runs[1].digests
    assert adoptable_recipes(STUDY, [tmp_path / "1"]) == set()
    curves = build_report(plans[0], tmp_path / "0").curves
    of_head = ("validation recall_at_1 of shared", "training loss of shared")
    for part in ("validation recall_at_1", "training recall_at_1", *of_head):
        assert [epoch for epoch, _ in curves[f"both: {part} by epoch"]] == [1, 2]
    assert curves["both: training loss of shared by epoch"][0][1] == logs[0][0]["terms"]["shared"]
    assert "alone: validation recall_at_1 of shared by epoch" not in curves
    assert "R@1 of shared by epoch" in as_html(build_report(plans[0], tmp_path / "0"))


def test_curves_stand_at_the_epochs_of_their_validations(tmp_path: Path) -> None:
    """With `schedule.validate_every=2` the second value is of epoch 4; seeds that end early shorten the mean."""
    plan = toys.plan(tmp_path, seeds=2, selections=("validation",))
    for run in plan.runs(tmp_path):
        toys.finish(run, 0.5, [1.0])
        length = 6 if run.seed == 0 else 4
        log = [{"epoch": e, **({"validation_recall_at_1": e / 10} if e % 2 == 0 else {})} for e in range(1, length + 1)]
        toys.change(run, training=[{**run.result()["training"][0], "log": log}])
    curves = build_report(plan, tmp_path).curves
    assert curves["margin: validation recall_at_1 by epoch"] == [(2, 0.2), (4, 0.4)]


def test_classes_per_group_by_hand() -> None:
    """Groups {0, 0, 1}, {1, 2, 3}, {4}: two, three and one classes."""
    labels = np.array([0, 0, 1, 1, 2, 3, 4])
    grouping = Grouping(labels, 3, 1, 0)
    grouping.groups.copy_(torch.tensor([0, 0, 0, 1, 1, 1, 2]))
    assert grouping.facts() == {"classes_per_group": 2.0}


def test_an_unknown_head_is_refused_where_it_is_named() -> None:
    with raises(RecipeError, "unknown-name"):
        Measure("recall_at_1", "both")
    assert [lacks_view(["shared"], view) for view in ("shared", "embedding", "features", "random head")] == [False] * 4
    assert not lacks_view([], "features reduced to 512")
    assert lacks_view(["shared"], "intra")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.views])
def test_every_view_of_a_study_is_one_of_some_arm(name: str) -> None:
    study = STUDIES[name]
    dataset = next(known for known in ("omniglot", "glyphs", "cub", "cub2010") if supports(study, known))
    heads = [[h.name for h in resolve_recipes(study, arm, dataset, 0)[0].heads] for arm in study.arms]
    for _, view in study.views:
        assert not all(lacks_view(names, view) for names in heads), view
