"""Plans: what a study may get later, damaged files, and the command that a report names."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from tests.commandline import parsed
from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.toys import finish
from tests.zoo.report.test_model import Reader
from training.studies import papers
from training.studies.named import plan_from_options
from training.studies.papers import find_study
from training.studies.plan import Plan, RunSchedule, read_plan, write_plan
from training.studies.render import as_html, as_markdown, command_of, command_of_search, to_json
from training.studies.report import build_report
from training.studies.results import RESULTS_FILE
from training.studies.search import SearchPlan
from training.studies.study import Study
from zoo.cli.studies import plan_in_folder
from zoo.errors import TrainingError, UsageError


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, toys.STUDY)


def only(plan: Plan, *labels: str) -> Plan:
    return dataclasses.replace(plan, only=labels)


def test_a_study_of_the_last_epoch_can_get_runs_selected_by_validation(tmp_path: Path) -> None:
    first = write_plan(toys.plan(tmp_path / "images", 1), tmp_path)
    done = [run.folder for run in first.runs(tmp_path)]
    both = write_plan(toys.plan(tmp_path / "images", 1, ("validation",)), tmp_path)
    assert both.selections == ("last", "validation")
    assert [run.folder for run in both.runs(tmp_path) if run.selection == "last"] == done
    assert len(both.runs(tmp_path)) == 2 * len(done)
    assert write_plan(toys.plan(tmp_path / "images", 1), tmp_path) == read_plan(tmp_path) == both
    assert len(json.loads((tmp_path / "plan.json").read_text())["runs"]) == 4


def test_a_study_as_published_has_a_name_and_recipes_of_its_own(tmp_path: Path) -> None:
    plain = toys.plan(tmp_path / "images", 1)
    plan = dataclasses.replace(plain, study=find_study("toys/two-as-published"))
    assert (plan.study.name, plan.study.paper_name) == ("toys/two-as-published", "toys/two")
    for arm in plan.arms:
        (before,), (after,) = plain.recipes(arm), plan.recipes(arm)
        assert (before.as_published, after.as_published) == (False, True)
        assert after.objective.miner_args == {"nonzero_loss_cutoff": None}  # batches have two samples per class
        assert (after.backbone, after.batch, after.schedule) == (before.backbone, before.batch, before.schedule)
        assert after.digest != before.digest
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path) == plan
    with raises(TrainingError, "other-study"):
        write_plan(plain, tmp_path)


def test_selected_arms_are_kept_and_can_be_extended(tmp_path: Path) -> None:
    all_arms = toys.plan(tmp_path / "images", 1)
    write_plan(only(all_arms, "contrastive"), tmp_path)
    assert [run.title for run in read_plan(tmp_path).runs(tmp_path)] == ["contrastive, seed 0"]
    assert plan_in_folder(tmp_path, []).only == ("contrastive",)
    assert RunSchedule(plan_in_folder(tmp_path, ["margin"]), tmp_path).begin().plan.only == ("margin", "contrastive")
    assert write_plan(all_arms, tmp_path).only == ()
    assert write_plan(only(all_arms, "margin"), tmp_path).only == ()  # all were asked for once
    with raises(UsageError, "unknown-name") as caught:
        only(all_arms, "x")
    assert "margin, contrastive" in str(caught.value)


def test_the_remedy_for_a_damaged_plan_keeps_finished_runs(tmp_path: Path) -> None:
    plan = toys.plan(tmp_path / "images", 1)
    write_plan(plan, tmp_path)
    finish(plan.runs(tmp_path)[0], 0.6, [1.0])
    intact = (tmp_path / "plan.json").read_text()
    for damaged in (intact[: len(intact) // 2], "[]"):
        (tmp_path / "plan.json").write_text(damaged)
        for function in (lambda: read_plan(tmp_path), lambda: write_plan(plan, tmp_path)):
            with raises(TrainingError, "damaged-file") as caught:
                function()
            assert str(tmp_path / "plan.json") in str(caught.value)
            assert "report.md" not in str(caught.value)
    (tmp_path / "report.md").write_text("with the command")
    with raises(TrainingError, "damaged-file") as caught:
        read_plan(tmp_path)
    assert str(tmp_path / "report.md") in str(caught.value)
    # The remedy: the plan is deleted, the command is given again, and the finished run is still there.
    (tmp_path / "plan.json").unlink()
    with raises(UsageError, "no-results") as caught:
        read_plan(tmp_path)
    assert f"--out {tmp_path}" in str(caught.value)
    assert [run.finished for run in write_plan(plan, tmp_path).runs(tmp_path)] == [True, False]
    with raises(UsageError, "no-results") as caught:
        read_plan(tmp_path / "images")
    assert "--out" not in str(caught.value)
    (tmp_path / RESULTS_FILE).write_text("{\n")
    with raises(TrainingError, "damaged-file"):
        plan.runs(tmp_path)[0].result()
    (tmp_path / RESULTS_FILE).write_text("")
    assert not plan.runs(tmp_path)[0].finished


def test_a_report_before_the_first_finished_run_says_so(tmp_path: Path) -> None:
    plan = toys.plan(tmp_path / "images", 1)
    markdown = as_markdown(build_report(plan, tmp_path))
    assert markdown.endswith("\nNo run has finished yet.\n")
    assert "Not finished: 2 runs (margin, seed 0; contrastive, seed 0)." in markdown
    for empty in ("Made with", "in all", "## Scores"):
        assert empty not in markdown
    text = Reader(as_html(build_report(plan, tmp_path))).text
    assert "No run has finished yet." in text
    assert "hardware" not in text
    finish(plan.runs(tmp_path)[0], 0.6, [1.0])
    assert "s in all. Made with: " in as_markdown(build_report(plan, tmp_path))
    many = as_markdown(build_report(toys.plan(tmp_path / "images", 4), tmp_path))
    assert "Not finished: 7 runs (contrastive, seed 0; margin, seed 1; contrastive, seed 1; " in many
    assert "contrastive, seed 2, ...)." in many


def test_a_plan_of_an_older_version_is_of_all_arms(tmp_path: Path) -> None:
    write_plan(toys.plan(tmp_path / "images", 1), tmp_path)
    raw = json.loads((tmp_path / "plan.json").read_text())
    del raw["only"]
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    assert len(read_plan(tmp_path).runs(tmp_path)) == 2
    assert write_plan(only(toys.plan(tmp_path / "images", 1), "margin"), tmp_path).only == ()


@pytest.mark.slow
def test_the_report_of_selected_arms_lists_only_them(tmp_path: Path) -> None:
    plan = only(toys.plan(tmp_path / "images"), "margin")
    for number, run in enumerate(plan.runs(tmp_path)):
        finish(run, 0.6, [1.0])
        toys.change(run, date=f"2026-11-2{number}T07:08:20+00:00")
    report = build_report(plan, tmp_path)
    assert (report.missing, report.claims) == ([], [])
    markdown, written = as_markdown(report), to_json(report)
    assert "Chosen: 1 of the study's 2 arms (margin). 2 claims about others are left out." in markdown
    assert "Not finished" not in markdown
    assert f"```sh\n{command_of(plan)}\n```" in markdown
    assert "Runs ended from 2026-11-20T07:08:20+00:00 to 2026-11-21T07:08:20+00:00." in markdown
    assert written["command"] == command_of(plan)
    assert written["dates"] == ("2026-11-20T07:08:20+00:00", "2026-11-21T07:08:20+00:00")
    assert written["only"] == ["margin"]
    text = Reader(as_html(report)).text
    for says in ("2 of 2 runs are finished, of 1 arms.", command_of(plan), "Runs ended from 2026-11-20"):
        assert says in text


def plan_by(study: Study, words: list[str]) -> Plan:
    """Return the plan that `zoo benchmark run` makes of these arguments."""
    params = parsed("benchmark run", *words)
    given = {name: params[name] for name in ("dataset", "seeds", "select", "data")}
    chosen = {name: params[name] or () for name in ("settings", "only", "weights")}
    return plan_from_options(study, **given, **chosen)


@pytest.mark.parametrize(
    "plan",
    [
        toys.plan(Path("/data with a space")),
        toys.plan(Path("/data"), 3, ("last", "validation")),
        only(toys.plan(Path("/data"), 1, ("validation",)), "margin", "contrastive"),
        Plan(find_study("group/convergence"), "glyphs", 5, ("validation",)),
        Plan(find_study("group/convergence"), "glyphs", 5, only=("cross entropy",)),
        Plan(find_study("group/convergence"), "glyphs", 5, ("validation",), weights=("conv4=a b", "ibn=/c")),
    ],
)
def test_the_command_of_a_study_reproduces_its_plan(plan: Plan) -> None:
    words = shlex.split(command_of(plan))
    assert words[:3] == ["zoo", "benchmark", "run"]
    assert plan_by(plan.study, words[3:]) == plan


def test_the_command_of_a_search_reproduces_its_plan() -> None:
    search = SearchPlan(("ntxent", "margin"), "glyphs", 8, 3, 2, 1, 7, settings=toys.SETTINGS, data="/data")
    words = shlex.split(command_of_search(search))
    params = parsed("benchmark search", *words[3:])
    given = {name: params[name] for name in ("dataset", "trials", "reruns", "folds", "patience", "seed", "data")}
    assert SearchPlan(tuple(params["losses"]), settings=tuple(params["settings"]), **given) == search


def test_the_convergence_study_reports_validation_curves(tmp_path: Path) -> None:
    study = find_study("group/convergence")
    plan = plan_by(study, [study.name, "--dataset", "glyphs", "--seeds", "1"])
    assert plan.selections == ("validation",)
    assert plan_by(study, [study.name, "--dataset", "glyphs", "--select", "last"]).selections == ("last",)
    for run in plan.runs(tmp_path):
        assert run.recipes[0].data.validation > 0
        finish(run, 0.6, [1.0])
    report = build_report(plan, tmp_path)
    assert list(report.curves) == [f"{label}: validation recall_at_1 by epoch" for label in study.labels]
    assert "R@1 by epoch" in Reader(as_html(report)).text


COMMITTED = ("claims-omniglot", "claims-cifar100", "selection-omniglot", "selection-cifar100", "years-omniglot")


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_runs_of_todays_definitions_and_no_others_have_todays_digests(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Sharing, MIC, DiVA's shared task and the quadruplet loss meant something else when these studies were run."""
    monkeypatch.undo()
    folder = Path(__file__).parents[3] / "docs" / "studies" / name
    for run in read_plan(folder).runs(folder):
        shared = any(head.name == "shared" for recipe in run.recipes for head in recipe.heads)
        older = shared or run.arm.label.startswith(("shared", "mic", "quadruplet"))
        assert (run.digests != run.result()["recipes"]) is older, run.title
