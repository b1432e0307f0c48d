"""Closeness of tuned losses: differences against SciPy, verdicts by hand, and the reports that contain them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.zoo.report.test_model import Reader
from training.studies.cross_validation import KINDS, METRICS
from training.studies.render import command_of_search
from training.studies.render_search import (
    as_markdown,
    combined_verdict,
    group_by_score,
    loss_differences,
    to_json,
    write_report,
)
from training.studies.search import SearchPlan, write_search
from training.studies.statistics import FAILS, HOLDS
from zoo.evaluation.statistics import UNDECIDED

SCORES = {"contrastive": (0.50, 0.51, 0.52), "ntxent": (0.505, 0.516, 0.524), "margin": (0.60, 0.61, 0.625)}
"""P@1 of the seeds 1 to 3."""


def reruns_of(scores: tuple[float, ...], seeds: tuple[int, ...] = (1, 2, 3)) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "protocol": "self-retrieval", **dict.fromkeys(KINDS, dict.fromkeys(METRICS, score))}
        for seed, score in zip(seeds, scores, strict=True)
    ]


def report_of(tests: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the report of a search whose losses have these reruns, as `build_report` does."""
    empty = {
        "given": False,
        "trials": {},
        "best": None,
        "began": None,
        "ended": None,
        "validations": [],
        "scores": None,
    }
    return [{"loss": loss, **empty, "reruns": len(runs), "tests": runs} for loss, runs in tests.items()]


REPORT = report_of({loss: reruns_of(scores) for loss, scores in SCORES.items()})


def test_differences_are_those_of_the_paired_t_test() -> None:
    differences = loss_differences(REPORT)
    assert len(differences) == 3 * len(KINDS) * len(METRICS)
    for pair in differences:
        ours, others = SCORES[pair.loss], SCORES[pair.other]
        assert pair.difference is not None
        assert pair.difference.mean == pytest.approx(np.mean(ours) - np.mean(others))
        expected = stats.ttest_rel(ours, others).confidence_interval(0.95)
        assert pair.difference.interval == pytest.approx(tuple(expected))


def test_reruns_are_paired_by_seed_and_not_by_place() -> None:
    late = {"a": reruns_of((0.2, 0.3), (2, 3)), "b": reruns_of((0.1, 0.2, 0.3))}
    first = loss_differences(report_of(late))[0]
    assert first.difference is not None
    assert (first.difference.n, first.difference.mean) == (2, pytest.approx(0))
    unpaired = report_of({"a": reruns_of((0.5,), (1,)), "b": reruns_of((0.5,), (2,))})
    assert loss_differences(unpaired)[0].close == UNDECIDED


def test_verdicts_by_hand() -> None:
    """Contrastive and NT-Xent .004 to .006 apart, margin .1 and more from both."""
    group = group_by_score(loss_differences(REPORT))["precision_at_1", "concatenated"]
    assert {(pair.loss, pair.other): pair.close for pair in group} == {
        ("contrastive", "ntxent"): HOLDS,
        ("contrastive", "margin"): FAILS,
        ("ntxent", "margin"): FAILS,
    }
    assert (combined_verdict(group), combined_verdict(group[:1]), combined_verdict([])) == (FAILS, HOLDS, UNDECIDED)
    apart = {"a": reruns_of((0.5, 0.6, 0.7)), "b": reruns_of((0.6, 0.5, 0.6))}
    assert combined_verdict(loss_differences(report_of(apart))) == UNDECIDED


def test_reports_contain_every_difference(tmp_path: Path) -> None:
    search = write_search(SearchPlan(tuple(SCORES), "glyphs", reruns=3), tmp_path)
    write_report(search, REPORT, tmp_path)
    markdown = (tmp_path / "report.md").read_text()
    assert markdown == as_markdown(search, REPORT, tmp_path)
    assert "P@1 separated: does not; P@1 concatenated: does not;" in markdown
    expected = stats.ttest_rel(SCORES["contrastive"], SCORES["margin"]).confidence_interval()
    low, high = expected
    cells = f"-0.1017 | {low:+.4f} to {high:+.4f} | 3 | < 0.001 | worse | does not |"
    assert f"| contrastive - margin | P@1 concatenated | {cells}" in markdown
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == json.loads(json.dumps(to_json(search, REPORT)))
    assert written["close"]["precision_at_1 concatenated"] == FAILS
    assert [record["close"] for record in written["differences"][:3]] == [HOLDS, FAILS, FAILS]
    assert f"```sh\n{command_of_search(search)}\n```" in markdown
    assert written["command"] == command_of_search(search)
    assert [record["seed"] for record in written["losses"][0]["tests"]] == [1, 2, 3]
    text = Reader((tmp_path / "report.html").read_text()).text
    assert command_of_search(search) in text
    for says in ("Are the tuned losses close?", "ntxent - margin", "-0.1017 (", "lie within 0.03"):
        assert says in text


def test_a_single_loss_has_no_differences(tmp_path: Path) -> None:
    search = write_search(SearchPlan(("ntxent",), "glyphs"), tmp_path)
    assert "close" not in as_markdown(search, report_of({"ntxent": reruns_of((0.5,), (1,))}), tmp_path)
