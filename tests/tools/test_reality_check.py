"""docs/reality-2026.md: its parts are those of the study, and equal to calculations by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tests.training.studies import toys
from tests.training.studies.toys import SCORES, finish
from tests.training.toys import SMALL, recipe
from tools import reality_check
from training.recipe import Recipe
from training.studies.papers import find_study
from training.studies.plan import read_plan
from training.studies.report import Report, build_report
from zoo.evaluation.statistics import Estimate
from zoo.files import read_json

TIMES = {"margin": 0.1, "contrastive": 0.2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a study of margin and contrastive."""
    for run in toys.plan(tmp_path, seeds=3).runs(tmp_path):
        finish(run, SCORES[run.arm.label][run.seed], [0.7, 0.3])
    return tmp_path


def report_of(folder: Path) -> Report:
    return build_report(toys.plan(folder, seeds=3), folder)


def test_objectives_are_read_from_the_study(folder: Path) -> None:
    first, second = reality_check.read_objectives(report_of(folder), TIMES)
    assert (first.name, first.year, first.rate, first.cost) == ("contrastive", 2, None, 2.0)
    assert (second.name, second.difference, second.cost) == ("margin", None, 1.0)
    assert first.r1.mean == pytest.approx(sum(SCORES["contrastive"]) / 3)
    assert first.difference is not None
    assert first.difference.mean == pytest.approx(first.r1.mean - second.r1.mean)


def test_the_page_states_scores_as_fractions_and_what_is_decided(folder: Path) -> None:
    report = report_of(folder)
    objectives = reality_check.read_objectives(report, TIMES)
    empty = "<!-- scores --><!-- end --><!-- facts --><!-- end -->"
    text = reality_check.page(empty, report, objectives)
    assert "| `contrastive` | 2 | 0.657 |" in text
    assert "| `margin` | 1 | 0.610 |" in text
    assert "1 (`contrastive`) beat `margin`" in text
    assert "rises by 0.047" in text


def test_recipes_take_turns_when_their_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    speeds = iter([100.0, 10.0, 300.0, 30.0, 200.0, 20.0])  # images per second

    def trained(recipe: Recipe, *_: object, **__: object) -> SimpleNamespace:
        names.append(recipe.name)
        assert (recipe.schedule.epochs, recipe.schedule.steps, recipe.data.views) == (1, 7, 1)
        return SimpleNamespace(log=[{"images_per_second": next(speeds)}])

    monkeypatch.setattr(reality_check, "fit", trained)
    times = reality_check.time_steps({name: recipe(name=name) for name in "ab"}, 3, 7)
    assert names == ["a", "b"] * 3
    assert times == pytest.approx({"a": 8 / 200, "b": 8 / 20})  # batches of eight


def test_the_time_of_a_step_is_measured_by_training_on_noise() -> None:
    times = reality_check.time_steps({"margin": recipe(backbone=replace(SMALL, frozen_stages=2))}, 1, 2)
    assert 0 < times["margin"] < 60


def test_the_committed_page_is_made_from_the_study() -> None:
    folder, text = reality_check.STUDY, reality_check.PAGE.read_text(encoding="utf-8")
    report = build_report(read_plan(folder), folder)
    objectives = reality_check.read_objectives(report, read_json(folder / reality_check.TIMES)["seconds"])
    assert not report.missing
    assert len(objectives) == len(find_study("claims/objectives").arms)
    assert reality_check.page(text, report, objectives) == text
    assert f"({reality_check.PICTURE.name})" in text
    with Image.open(reality_check.PICTURE) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 500


def test_every_objective_of_the_study_has_a_year() -> None:
    study = find_study("claims/objectives")
    assert all(arm.x is not None and 1990 < arm.x < 2027 for arm in study.arms)
    assert study.reference == reality_check.BASELINE


def test_trends_and_the_correlation_with_decay_are_stated(folder: Path) -> None:
    _, second = reality_check.read_objectives(report_of(folder), TIMES)
    values = ((0.5, 0.8), (0.6, 0.7), (0.7, 0.9), (0.8, 0.2))
    several = [
        replace(second, name=str(i), r1=replace(second.r1, mean=r1), decay=Estimate(3, decay))
        for i, (r1, decay) in enumerate(values)
    ]
    # By hand: the sums of products and squares of the deviations are -.08, .05 and .29; tanh(atanh(r) +- 1.96).
    facts = reality_check.fact_list(several)
    assert "r = -0.66 (-0.99 to +0.82," in facts
    assert "have a higher R@1 (Revisiting, section 5): undecided" in facts
    assert "Without those behind `margin`: -0.66" in facts  # one seed decides nothing


def test_the_figure_is_a_picture(folder: Path) -> None:
    drawn = reality_check.draw(reality_check.read_objectives(report_of(folder), TIMES))
    assert drawn.startswith(b"\x89PNG")
    assert drawn == reality_check.draw(reality_check.read_objectives(report_of(folder), TIMES))


def test_objectives_without_a_meaningful_decay_and_scores_of_one_seed_have_empty_cells(folder: Path) -> None:
    first, second = reality_check.read_objectives(report_of(folder), TIMES)
    once = replace(first, decay=None, r1=replace(first.r1, interval=None))
    row = next(line for line in reality_check.score_table([once, second]).splitlines() if "`contrastive`" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == ["0.657", ""]
    assert cells[-1] == ""
    assert reality_check.draw([once, second]).startswith(b"\x89PNG")
