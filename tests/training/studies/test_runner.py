"""A study's runs: performed once, resumed after a kill, shared by processes, adopted, with their provenance."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import pytest
import torch
from PIL import Image

import training.trainer
from tests import children
from tests.raising import raises
from tests.training.studies import toys
from training import api, checkpoint
from training.recipe import EnsembleRecipe, Recipe
from training.studies import measure, papers, runner, study
from training.studies.plan import FAILURE_FILE, Plan, RunSchedule, adapt_to_dataset, images_of, read_plan, write_plan
from training.studies.report import build_report
from training.studies.results import RESULTS_FILE, Result, Results
from training.studies.runner import (
    Tally,
    adopt_results,
    claim_folder,
    create_study_context,
    perform_runs,
    prepare_contexts,
    run_schedule,
)
from training.studies.study import R1, Arm, Measure, Study
from zoo.errors import DatasetError, RecipeError, TrainingError, UsageError
from zoo.files import complete_lines


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return toys.images(tmp_path / "images")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, toys.STUDY)


def go(plan: Plan, folder: Path, lines: list[str] | None = None) -> Tally:
    work = create_study_context(torch.device("cpu"), plan.data)
    schedule = RunSchedule(plan, folder)
    return perform_runs(schedule, schedule.runs, work, [].append if lines is None else lines.append)


@pytest.mark.slow
def test_every_run_is_measured_and_records_its_provenance(tmp_path: Path, data: Path) -> None:
    plan = write_plan(toys.plan(data), tmp_path / "study")
    lines: list[str] = []
    tally = go(plan, tmp_path / "study", lines)
    assert [run.title for run in tally.done] == [
        f"{arm}, seed {s}" for s in (0, 1) for arm in ("margin", "contrastive")
    ]
    assert lines[0].startswith("[1/4] margin, seed 0: test recall_at_1 ")
    assert "to go" in lines[0]
    assert "to go" not in lines[-1]
    result = tally.done[0].result()
    assert result["recipes"] == [plan.runs(tmp_path / "study")[0].recipes[0].digest]
    assert result["training"][0]["epochs"] == result["training"][0]["measured_epoch"] == 2
    assert result["versions"]["torch"]
    assert result["hardware"]["cores"]
    measured = {(e["split"], e["view"]): e for e in result["evaluations"]}
    assert set(measured) == {("test", "embedding"), ("train", "embedding"), ("test", "features")}
    assert 0 <= measured["test", "embedding"]["metrics"]["recall_at_1"] <= 1
    assert measured["train", "embedding"]["metrics"]["spectral_decay"] > 0
    spectrum = measured["test", "features"]["spectrum"]
    assert sum(spectrum) == pytest.approx(1)
    assert spectrum == sorted(spectrum, reverse=True)
    by_class = measured["test", "features"]["spectrum_by_class"]
    assert len(by_class) == 4  # samples of a class
    assert sum(by_class) == pytest.approx(1)
    assert not list((tmp_path / "study").rglob("checkpoint.safetensors"))


@pytest.mark.slow
def test_training_data_are_decoded_once_for_all_seeds_of_a_study_without_held_out_classes(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    prepare = api.training_data.prepare
    monkeypatch.setattr(api.training_data, "prepare", lambda *args: loaded.append(args) or prepare(*args))
    go(toys.plan(data), tmp_path / "study")
    assert len(loaded) == 1


@pytest.mark.slow
def test_a_killed_study_continues_without_repeating_finished_runs(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, saved = tmp_path / "study", checkpoint.save
    plan = write_plan(toys.plan(data), folder)
    saves = []

    def killed_in_the_second_run(value: dict[str, object], path: Path) -> None:
        saved(value, path)
        saves.append(path)
        if len(saves) == 3:  # two epochs of the first run, one of the second
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", killed_in_the_second_run)
    with pytest.raises(KeyboardInterrupt):
        go(plan, folder)
    monkeypatch.undo()
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, toys.STUDY)
    (first,) = complete_lines(folder / RESULTS_FILE)
    epochs = []
    epoch = training.trainer._epoch
    monkeypatch.setattr(
        training.trainer, "_epoch", lambda run, *rest: epochs.append(run.recipe.seed) or epoch(run, *rest)
    )
    tally = go(read_plan(folder), folder)
    assert (len(tally.before), len(tally.done)) == (1, 3)
    assert complete_lines(folder / RESULTS_FILE)[0] == first
    assert len(epochs) == 1 + 2 + 2  # the second run continues from its checkpoint
    assert len(go(read_plan(folder), folder).before) == 4
    uninterrupted = tmp_path / "whole"
    go(toys.plan(data), uninterrupted)
    for run, other in zip(plan.runs(folder), plan.runs(uninterrupted), strict=True):
        a, b = run.result()["evaluations"], other.result()["evaluations"]
        assert [e["metrics"] for e in a] == [e["metrics"] for e in b]


@pytest.mark.slow
def test_a_run_held_by_another_process_is_skipped(tmp_path: Path, data: Path) -> None:
    plan = toys.plan(data)
    held = plan.runs(tmp_path)[1]
    with claim_folder(held.folder) as ours:
        assert ours
        tally = go(plan, tmp_path)
    assert [run.title for run in tally.elsewhere] == [held.title]
    assert len(tally.done) == 3
    assert [run.title for run in go(plan, tmp_path).done] == [held.title]


@pytest.mark.slow  # starts a process
def test_two_processes_share_a_folder_and_one_may_be_killed(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "study"
    plan = toys.plan(data, seeds=6)
    other = children.start(toys.run_study, data, folder)
    try:
        deadline = time.monotonic() + 120
        while not complete_lines(folder / RESULTS_FILE):
            assert other.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        work = create_study_context(torch.device("cpu"), plan.data)
        tally = perform_runs(RunSchedule(plan, folder), plan.runs(folder), work, lambda line: other.kill())
    finally:
        other.kill()
        other.join()
    assert tally.before
    assert len(tally.before) + len(tally.done) + len(tally.elsewhere) == 12
    finished = sum(run.finished for run in plan.runs(folder))
    assert len(go(plan, folder).done) == 12 - finished <= 1


@pytest.mark.slow
def test_a_failed_run_does_not_stop_others_and_is_tried_again(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toys.plan(data)
    train = runner.train_network

    def one_fails(recipe: object, *args: object, **kwargs: object) -> object:
        if recipe.method == "contrastive" and recipe.seed == 0:
            raise TrainingError("the loss became nan")
        return train(recipe, *args, **kwargs)

    monkeypatch.setattr(runner, "train_network", one_fails)
    lines: list[str] = []
    tally = go(plan, tmp_path, lines)
    assert len(tally.done) == 3
    assert tally.to_json()["failed"] == [{"run": "contrastive, seed 0", "message": "the loss became nan"}]
    assert "contrastive, seed 0: failed: the loss became nan" in lines
    failure = tally.failed[0][0].folder / FAILURE_FILE
    assert json.loads(failure.read_text())["error"] == "TrainingError"
    monkeypatch.setattr(runner, "train_network", train)
    assert len(go(plan, tmp_path).done) == 1
    assert not failure.exists()


def test_test_images_are_not_read_before_training_has_ended(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    load = measure.datasets.load_dataset
    monkeypatch.setattr(
        measure.datasets, "load_dataset", lambda name, split, root: opened.append(split) or load(name, split, root)
    )
    train = runner.train_network

    def watched(*args: object, **kwargs: object) -> object:
        trained = train(*args, **kwargs)
        assert "test" not in opened
        return trained

    monkeypatch.setattr(runner, "train_network", watched)
    plan = toys.plan(data, seeds=1, selections=("validation",), settings=("data.validation=0.25",))
    first = plan.runs(tmp_path)[:1]
    assert (
        len(
            perform_runs(
                RunSchedule(plan, tmp_path), first, create_study_context(torch.device("cpu"), plan.data), [].append
            ).done
        )
        == 1
    )
    assert opened == ["train", "test", "train"]


@pytest.mark.slow
def test_runs_of_both_selections_share_a_study(tmp_path: Path, data: Path) -> None:
    plan = toys.plan(data, 1, ("last", "validation"), ("data.validation=0.25",))
    go(plan, tmp_path)
    last, selected = (run.result() for run in plan.runs(tmp_path)[:2])
    assert "validation_recall_at_1" not in last["training"][0]["log"][0]
    log = selected["training"][0]["log"]
    scores = [record["validation_map_at_r"] for record in log]
    assert selected["training"][0]["measured_epoch"] == 1 + scores.index(max(scores))


def test_only_seeds_can_be_added(tmp_path: Path, data: Path) -> None:
    write_plan(toys.plan(data, seeds=1), tmp_path)
    assert write_plan(toys.plan(data, seeds=3), tmp_path).seeds == 3
    assert write_plan(toys.plan(data, seeds=1), tmp_path).seeds == 3
    assert read_plan(tmp_path) == toys.plan(data, seeds=3)
    with raises(TrainingError, "other-study") as caught:
        write_plan(toys.plan(data, settings=("optimizer.lr=1",)), tmp_path)
    assert "settings" in str(caught.value)
    with raises(UsageError, "invalid-value"):
        toys.plan(data, seeds=0)


def test_a_recipe_that_has_changed_since_is_told_in_a_report_and_joined_by_no_run(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(toys.plan(data), tmp_path)
    arms = (toys.STUDY.arms[0], dataclasses.replace(toys.STUDY.arms[1], settings=("optimizer.lr=0.1",)))
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, dataclasses.replace(toys.STUDY, arms=arms))
    changed = read_plan(tmp_path)
    assert "contrastive (optimizer.lr)" in changed.study.note
    with raises(TrainingError, "other-study") as caught:
        RunSchedule(changed, tmp_path).begin()
    assert "contrastive" in str(caught.value)


@pytest.mark.parametrize("selection", ["last", "validation"])
def test_too_few_classes_are_refused_before_the_first_run(tmp_path: Path, data: Path, selection: str) -> None:
    """The finding: every run failed, one by one, with the advice to resume."""
    settings = ("batch.size=128", "batch.per_class=4", "data.validation=0.25")
    folder = tmp_path / "study"
    with raises(RecipeError, "too-few-classes") as caught:
        prepare_contexts([RunSchedule(toys.plan(data, 2, (selection,), settings), folder)])
    # Eight classes, of which validation holds out two.
    fitting = f"batch.size={4 * (8 if selection == 'last' else 6)}"
    assert f"--set {fitting}" in str(caught.value)
    assert not folder.exists()
    prepare_contexts([RunSchedule(toys.plan(data, 2, (selection,), (*settings, fitting)), folder)])


def test_without_a_plan_runs_of_other_recipes_are_not_joined(tmp_path: Path, data: Path) -> None:
    assert len(go(toys.plan(data, 1), tmp_path).done) == 2  # leaves no plan.json
    for settings in (("optimizer.lr=5",), ("data.views=2",)):
        with raises(TrainingError, "other-study"):
            RunSchedule(toys.plan(data, 2, ("last",), settings), tmp_path).begin()
    assert not (tmp_path / "plan.json").exists()
    assert len([run for run in RunSchedule(toys.plan(data, 2), tmp_path).begin().runs if run.finished]) == 2


def test_folders_without_a_plan_are_refused(tmp_path: Path, data: Path) -> None:
    with raises(UsageError, "no-results"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with raises(TrainingError, "damaged-file"):
        read_plan(tmp_path)


def test_runs_of_some_arms_are_selected(tmp_path: Path, data: Path) -> None:
    schedule = RunSchedule(toys.plan(data), tmp_path)
    assert [run.arm.label for run in schedule.select(["margin"])] == ["margin", "margin"]
    with raises(UsageError, "unknown-name") as caught:
        schedule.select(["x"])
    assert "margin, contrastive" in str(caught.value)


def test_missing_images_fail_every_run(tmp_path: Path) -> None:
    tally = go(toys.plan(tmp_path / "absent"), tmp_path)
    assert len(tally.failed) == 4
    assert DatasetError.__name__ in (tally.failed[0][0].folder / FAILURE_FILE).read_text()


@pytest.mark.slow
def test_finished_runs_of_the_same_recipes_are_adopted_from_another_study(tmp_path: Path, data: Path) -> None:
    plan = toys.plan(data)
    go(plan, tmp_path / "one")
    arms = (dataclasses.replace(toys.STUDY.arms[1], label="pairs"), Arm("ms", "ms-$backbone-$dataset"))
    other = dataclasses.replace(plan, study=Study("toys/other", "", "", arms, toys.STUDY.measures[:2]))
    runs = other.runs(tmp_path / "two")
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / FAILURE_FILE).write_text("{}")
    assert adopt_results(RunSchedule(other, tmp_path / "two"), runs, tmp_path / "one") == 2
    assert not (runs[0].folder / FAILURE_FILE).exists()
    assert adopt_results(RunSchedule(other, tmp_path / "two"), runs, tmp_path / "one") == 0
    tally = go(other, tmp_path / "two")
    assert [run.title for run in tally.before] == ["pairs, seed 0", "pairs, seed 1"]
    assert [run.title for run in tally.done] == ["ms, seed 0", "ms, seed 1"]
    result = tally.before[0].result()
    assert result["arm"] == "pairs"
    assert result["from"] == f"{tmp_path / 'one'}: contrastive/seed-0"
    more = dataclasses.replace(other, study=dataclasses.replace(other.study, measures=(R1, Measure("nmi"))))
    assert adopt_results(RunSchedule(more, tmp_path / "three"), more.runs(tmp_path / "three"), tmp_path / "one") == 0
    with raises(UsageError, "no-results"):
        adopt_results(RunSchedule(other, tmp_path / "two"), runs, tmp_path)


def test_every_step_of_a_study_uses_the_recipes_that_were_resolved_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adaptation to the data set, the plan of more seeds and its extension, the runs and the report share them."""
    resolved: list[tuple[str, tuple[str, ...]]] = []
    seeded: list[tuple[str, str]] = []
    resolve, with_validation = study.resolve, study._with_validation

    def count_resolution(name: str, settings: Iterable[str] = ()) -> Recipe | EnsembleRecipe:
        resolved.extend([(name, tuple(settings))] if settings else [])  # without settings: only the width is read
        return resolve(name, settings)

    def count_seed(recipe: Recipe, selection: str) -> Recipe:
        seeded.append((recipe.name, selection))
        return with_validation(recipe, selection)

    monkeypatch.setattr(study, "resolve", count_resolution)
    monkeypatch.setattr(study, "_with_validation", count_seed)
    study._seeded_recipes.cache_clear()
    study._resolve_members.cache_clear()
    plan = Plan(papers.find_study("claims/rho"), "glyphs", 1, settings=("schedule.epochs=2",))
    for seeds in (1, 2, 1):
        schedule = RunSchedule(adapt_to_dataset(dataclasses.replace(plan, seeds=seeds)), tmp_path).begin()
    build_report(schedule.plan, tmp_path, schedule.runs)
    build_report(read_plan(tmp_path), tmp_path)
    arms = len(plan.arms)
    assert len(schedule.runs) == 2 * arms
    assert len(seeded) == 2 * arms
    assert len(resolved) == len(set(resolved)) == arms


@pytest.mark.slow
def test_recipes_are_seeded_and_digested_and_results_are_read_once(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded: list[str] = []
    read: list[str] = []
    digests: list[str] = []
    build, parse, digest = study._with_validation, Results._parse, Recipe.digest.func

    def built(recipe: Recipe, selection: str) -> Recipe:
        seeded.append(recipe.name)
        return build(recipe, selection)

    def parsed(results: Results, line: bytes) -> tuple[str, Result]:
        name, result = parse(results, line)
        read.append(name)
        return name, result

    def digested(recipe: Recipe) -> str:
        digests.append(recipe.name)
        return digest(recipe)

    counted = cached_property(digested)
    counted.__set_name__(Recipe, "digest")
    monkeypatch.setattr(Recipe, "digest", counted)
    monkeypatch.setattr(study, "_with_validation", built)
    monkeypatch.setattr(Results, "_parse", parsed)
    study._seeded_recipes.cache_clear()
    requested = RunSchedule(toys.plan(data, seeds=3), tmp_path)
    (work,) = prepare_contexts([requested])
    schedule = requested.begin()
    assert len(run_schedule(schedule, work, progress=[].append).done) == 6
    schedule.check_finished()
    assert len(build_report(schedule.plan, tmp_path, schedule.runs).rows) > 0
    assert len(seeded) == 6
    assert len(digests) == 6
    assert read == [run.name for run in schedule.runs]


def test_a_schedule_knows_the_images_of_runs_that_others_finish(tmp_path: Path, data: Path) -> None:
    plan = toys.plan(data, seeds=1)
    schedule, other = RunSchedule(plan, tmp_path), RunSchedule(plan, tmp_path)
    first, second = schedule.runs
    schedule.check_images(first, {("glyphs",): "11111111"})
    assert (
        len(perform_runs(other, other.runs[:1], create_study_context(torch.device("cpu"), plan.data), [].append).done)
        == 1
    )
    images = images_of(first, first.result())
    schedule.check_images(second, images)
    with raises(TrainingError, "other-study"):
        schedule.check_images(second, dict.fromkeys(images, "11111111"))


@pytest.fixture
def other_data(tmp_path: Path) -> Path:
    """The same names and classes as `data`, with other pixels."""
    folder = toys.images(tmp_path / "others")
    for path in folder.rglob("*.png"):
        Image.effect_noise((20, 20), 60).convert("RGB").save(path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["last", "validation"])
def test_runs_from_other_images_are_refused(tmp_path: Path, data: Path, other_data: Path, selection: str) -> None:
    folder, settings = tmp_path / "study", ("data.validation=0.25",)
    plan = write_plan(toys.plan(data, 2, (selection,), settings), folder)
    work = create_study_context(torch.device("cpu"), plan.data)
    perform_runs(
        RunSchedule(plan, folder), plan.runs(folder)[:2], work, [].append
    )  # seed 0; then the process was killed
    changed = dataclasses.replace(plan, data=str(other_data))
    tally = go(changed, folder)
    assert (len(tally.before), len(tally.done), len(tally.failed)) == (2, 0, 2)
    assert "margin, seed 1" in tally.failed[0][1]
    assert "comes from other images than margin, seed 0" in tally.failed[0][1]
    assert len(go(dataclasses.replace(changed, data=str(data)), folder).done) == 2


def test_a_study_is_not_continued_or_reported_on_other_images(tmp_path: Path, data: Path, other_data: Path) -> None:
    """A finished study has no run left that would notice other images; its copy elsewhere has the same images."""
    plan, folder = toys.plan(data, seeds=1), tmp_path / "study"
    go(write_plan(plan, folder), folder)
    with raises(TrainingError, "other-study"):
        write_plan(toys.plan(other_data, seeds=1), folder)
    copy = shutil.copytree(data, tmp_path / "copy")
    assert write_plan(toys.plan(copy, seeds=1), folder).data == str(copy)
    assert read_plan(folder).data == str(data)


def test_runs_from_other_images_are_not_adopted(tmp_path: Path, data: Path, other_data: Path) -> None:
    plan, other = toys.plan(data, seeds=1), toys.plan(other_data, seeds=1)
    go(other, tmp_path / "there")
    first = plan.runs(tmp_path / "here")
    perform_runs(
        RunSchedule(plan, tmp_path / "here"), first[:1], create_study_context(torch.device("cpu"), plan.data), [].append
    )
    with raises(TrainingError, "other-study"):
        adopt_results(RunSchedule(plan, tmp_path / "here"), first, tmp_path / "there")
    assert not first[1].finished


def test_a_folder_with_runs_from_different_images_is_refused(tmp_path: Path, data: Path) -> None:
    plan = toys.plan(data, seeds=1)
    go(plan, tmp_path)
    toys.change(plan.runs(tmp_path)[1], data=["00000000"])
    with raises(TrainingError, "other-study"):
        RunSchedule(plan, tmp_path).check_finished()


def test_copies_are_trained_separately_and_their_embeddings_joined(tmp_path: Path, data: Path) -> None:
    arms = (toys.STUDY.arms[0], dataclasses.replace(toys.STUDY.arms[0], label="two", copies=2))
    plan = dataclasses.replace(toys.plan(data, seeds=1), study=Study("toys/copies", "", "", arms))
    go(plan, tmp_path)
    single, pair = (run.result() for run in plan.runs(tmp_path))
    assert len(pair["training"]) == 2
    assert pair["evaluations"][0]["dim"] == 2 * single["evaluations"][0]["dim"]
    assert pair["training"][0]["log"][0]["loss"] == single["training"][0]["log"][0]["loss"]
