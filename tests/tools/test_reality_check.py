"""docs/reality-2026.md: its parts are those of the study, and equal to calculations by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.studies import toys
from tests.training.studies.toys import SCORES, finish
from tools import reality_check
from training.studies.papers import find_study
from training.studies.report import Report, build_report
from training.studies.results import Results
from training.studies.statistics import Summary


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a study of margin and contrastive, the latter twice as slow."""
    for run in toys.plan(tmp_path, seeds=3).runs(tmp_path):
        finish(run, SCORES[run.arm.label][run.seed], [0.7, 0.3])
        seconds = 60.0 if run.arm.label == "contrastive" else 30.0
        training = [{**record, "steps": 10, "seconds": seconds} for record in run.result()["training"]]
        toys.change(run, training=training)
    return tmp_path


def report_of(folder: Path) -> Report:
    return build_report(toys.plan(folder, seeds=3), folder)


def test_objectives_are_read_from_the_study(folder: Path) -> None:
    first, second = reality_check.read_objectives(report_of(folder), Results(folder))
    assert (first.name, first.year, first.rate, first.cost) == ("contrastive", 2, None, 2.0)
    assert (second.name, second.difference, second.cost) == ("margin", None, 1.0)
    assert first.r1.mean == pytest.approx(sum(SCORES["contrastive"]) / 3)
    assert first.difference is not None
    assert first.difference.mean == pytest.approx(first.r1.mean - second.r1.mean)


def test_the_page_states_scores_in_points_and_what_is_decided(folder: Path) -> None:
    report = report_of(folder)
    objectives = reality_check.read_objectives(report, Results(folder))
    empty = "<!-- scores --><!-- end --><!-- facts --><!-- end -->"
    text = reality_check.page(empty, report, objectives)
    assert "| `contrastive` | 2 | 65.7 |" in text
    assert "| `margin` | 1 | 61.0 |" in text
    assert "1 (`contrastive`) beat `margin`" in text
    assert "rises by 4.7 points" in text


def test_every_objective_of_the_study_has_a_year() -> None:
    study = find_study("claims/objectives")
    assert all(arm.x is not None and 1990 < arm.x < 2027 for arm in study.arms)
    assert study.reference == reality_check.BASELINE


def test_trends_and_the_correlation_with_decay_are_stated(folder: Path) -> None:
    _, second = reality_check.read_objectives(report_of(folder), Results(folder))
    values = ((0.5, 0.8), (0.6, 0.7), (0.7, 0.9), (0.8, 0.2))
    several = [
        replace(second, name=str(i), r1=replace(second.r1, mean=r1), decay=Summary(3, decay, None, None))
        for i, (r1, decay) in enumerate(values)
    ]
    # By hand: the sums of products and squares of the deviations are -.08, .05 and .29; tanh(atanh(r) +- 1.96).
    facts = reality_check.fact_list(several)
    assert "r = -0.66 (-0.99 to +0.82," in facts
    assert "have a higher R@1 (Revisiting, section 5): undecided" in facts


def test_the_figure_is_a_picture(folder: Path) -> None:
    drawn = reality_check.draw(reality_check.read_objectives(report_of(folder), Results(folder)))
    assert drawn.startswith(b"\x89PNG")
    assert drawn == reality_check.draw(reality_check.read_objectives(report_of(folder), Results(folder)))


def test_objectives_without_a_meaningful_decay_and_scores_of_one_seed_have_empty_cells(folder: Path) -> None:
    first, second = reality_check.read_objectives(report_of(folder), Results(folder))
    once = replace(first, decay=None, r1=replace(first.r1, interval=None))
    row = next(line for line in reality_check.score_table([once, second]).splitlines() if "`contrastive`" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == ["65.7", ""]
    assert cells[-1] == ""
    assert reality_check.draw([once, second]).startswith(b"\x89PNG")
