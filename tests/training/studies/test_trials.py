"""Trials: the held-out score chooses, nothing is repeated, and test classes are not read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.raising import raises
from tests.training.studies import toys
from training.api import train_network
from training.studies import measure, papers, runner
from training.studies.named import plan_from_options
from training.studies.plan import PLAN_FILE, Plan, RunSchedule, read_plan
from training.studies.render import as_html, as_markdown, command_of, to_json
from training.studies.report import build_report
from training.studies.results import Results
from training.studies.runner import claim_folder, create_study_context, run_schedule, run_trials
from training.studies.study import R1, Arm, Study
from training.studies.trials import TRIALS_FILE, TrialSearch, TrialValues, trial_folder
from zoo.cli.main import main
from zoo.errors import DatasetError, DivergedError, TrainingError, UsageError
from zoo.files import complete_lines

RATES = (1e-6, 0.1)
TRIALS = {("margin", 1e-6), ("margin", 0.1), ("contrastive", 1e-6), ("contrastive", 0.1)}


def hard_images(folder: Path) -> Path:
    """Write noise around tints that differ by less than the noise, so that no network separates all classes."""
    draw = np.random.default_rng(0)
    for split, number, i in product(("train", "test"), range(20), range(4)):
        place = folder / split / f"class{number:02}"
        place.mkdir(parents=True, exist_ok=True)
        tint = 60 + np.array([number % 3, number // 3 % 3, number // 9]) * 6
        pixels = (tint + draw.integers(0, 120, 3) + draw.integers(0, 40, (20, 20, 3))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{i}.png")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return hard_images(tmp_path / "images")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, toys.STUDY)


def plan_of(data: Path) -> Plan:
    return dataclasses.replace(toys.plan(data, settings=("data.validation=0.3",)), rates=RATES)


def try_rates(plan: Plan, folder: Path, lines: list[str] | None = None) -> RunSchedule:
    work = create_study_context(torch.device("cpu"), plan.data)
    return run_trials(RunSchedule(plan, folder).begin(), work, progress=[].append if lines is None else lines.append)


def tried(folder: Path) -> set[tuple[str, float]]:
    return {(record["arm"], record["rate"]) for record in Results(folder, TRIALS_FILE).values()}


def searched(search: TrialSearch, height: Callable[[TrialValues], float | None]) -> dict[TrialValues, float | None]:
    """Return the trials of an arm whose scores are known beforehand, in their order."""
    scores: dict[TrialValues, float | None] = {}
    while (values := search.next_values(scores)) is not None:
        assert search.chosen(scores) is None
        scores[values] = height(values)
    return scores


def hill(rate: float, factor: float) -> Callable[[TrialValues], float | None]:
    """Return scores that fall with the distance to an optimum, in half decades and doublings."""
    return lambda values: -abs(2 * math.log10(values.rate / rate)) - abs(math.log2(values.factor / factor))


def test_the_rate_with_the_higher_score_is_chosen_once_every_rate_was_tried() -> None:
    rates = TrialSearch((0.1, 0.2, 0.3))
    scores = {TrialValues(0.1): 0.5, TrialValues(0.2): 0.7}
    assert rates.chosen(scores) is None
    assert rates.chosen(scores | {TrialValues(0.3): 0.6}) == TrialValues(0.2)
    assert TrialSearch((0.1, 0.2)).chosen({TrialValues(0.1): 0.5, TrialValues(0.2): 0.5}) == TrialValues(0.1)
    assert TrialSearch((0.1, 0.2)).chosen({TrialValues(0.1): 0.5, TrialValues(0.2): None}) == TrialValues(0.1)
    assert TrialSearch((0.1, 0.2)).chosen({TrialValues(0.1): None, TrialValues(0.2): None}) is None


@pytest.mark.parametrize(("rate", "factor"), [(3.2e-4, 1), (1e-3, 2), (3.2e-3, 1), (1e-4, 0.5), (1e-4, 4)])
def test_the_search_finds_an_optimum_that_is_not_at_the_edge(rate: float, factor: float) -> None:
    search = TrialSearch((1e-4, 3.2e-4, 1e-3), 8)
    scores = searched(search, hill(rate, factor))
    best = search.chosen(scores)
    assert best is not None
    assert (best.rate, best.factor) == (pytest.approx(rate, rel=0.05), factor)
    assert 8 <= len(scores) <= 16
    tried = {(round(2 * math.log10(v.rate)), round(math.log2(v.factor))) for v in scores}
    place = round(2 * math.log10(best.rate)), round(math.log2(best.factor))
    assert {(place[0] + 1, place[1]), (place[0] - 1, place[1])} <= tried
    assert {(place[0], place[1] + 1), (place[0], place[1] - 1)} <= tried
    assert not search.is_at_edge(scores)


def test_the_search_has_a_budget_and_varies_no_constant_that_an_arm_lacks() -> None:
    assert len(searched(TrialSearch((1e-4, 3.2e-4), 5), hill(3.2e-4, 1))) == 5
    endless = TrialSearch((1e-4, 3.2e-4), 4)
    ascent = searched(endless, lambda values: values.rate * values.factor)
    assert len(ascent) == 8
    assert endless.is_at_edge(ascent)
    alone = searched(TrialSearch((1e-4, 3.2e-4, 1e-3), 5, constant=False), hill(3.2e-4, 1))
    assert {values.factor for values in alone} == {1}
    assert not TrialSearch((1e-4, 3.2e-4, 1e-3), 5, constant=False).is_at_edge(alone)
    assert sorted(values.rate for values in alone) == pytest.approx([3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3], rel=0.05)


@pytest.mark.slow
def test_each_arm_is_run_with_the_rate_that_is_better_on_held_out_classes(tmp_path: Path, data: Path) -> None:
    folder, plan = tmp_path / "study", plan_of(data)
    schedule = try_rates(plan, folder)
    assert tried(folder) == TRIALS
    work = create_study_context(torch.device("cpu"), plan.data)
    tally = run_schedule(schedule, work, progress=[].append)
    assert len(tally.done) == 4
    assert not [*folder.glob("trials/**/*.safetensors")]
    for arm in plan.study.arms:
        alone = {}
        for rate in RATES:  # the same training outside of a study
            (recipe,) = plan.trial_recipes(arm, TrialValues(rate))
            assert (recipe.seed, recipe.optimizer.lr, recipe.data.validation) == (0, rate, 0.3)
            trained, _ = train_network(recipe, work.setup, tmp_path / "alone")
            alone[rate] = trained.log[-1]["validation_map_at_r"]
        record = {trial.rate: trial.score for trial in schedule.plan.trials if trial.arm == arm.label}
        assert record == pytest.approx(alone)
        assert len(set(alone.values())) == 2
        better = max(RATES, key=lambda rate: alone[rate])
        runs = [run for run in tally.done if run.arm == arm]
        assert {run.recipes[0].optimizer.lr for run in runs} == {better}
        assert [run.recipes[0].data.validation for run in runs] == [0, 0]
        assert all(f"optimizer.lr={better!r}" in run.result()["settings"] for run in runs)
        counts = {(recipe.schedule.epochs, recipe.schedule.steps) for run in runs for recipe in run.recipes}
        assert counts == {(recipe.schedule.epochs, recipe.schedule.steps)}


@pytest.mark.slow
def test_trials_of_the_same_recipes_are_adopted_from_another_study(tmp_path: Path, data: Path) -> None:
    plan, work = plan_of(data), create_study_context(torch.device("cpu"), str(data))
    first = try_rates(dataclasses.replace(plan, only=("margin",)), tmp_path / "first")
    lines: list[str] = []
    begun = RunSchedule(plan, tmp_path / "second").begin()
    second = run_trials(begun, work, sources=[tmp_path / "first"], progress=lines.append)
    assert [line.split(",")[0] for line in lines] == ["contrastive", "contrastive"]  # only these were trained
    assert tried(tmp_path / "second") == TRIALS
    assert set(first.plan.trials) < set(second.plan.trials)
    others = dataclasses.replace(plan, settings=(*plan.settings, "optimizer.weight_decay=0.01"), only=("margin",))
    run_trials(
        RunSchedule(others, tmp_path / "third").begin(), work, sources=[tmp_path / "first"], progress=lines.append
    )
    assert [line.split(",")[0] for line in lines[2:]] == ["margin", "margin"]  # of other recipes


@pytest.mark.slow
@pytest.mark.parametrize(
    "arms",
    [
        ["toys/two"],
        ["--arm", 'margin=margin-conv4-glyphs,objective.loss_args={"margin":0.2}', "--arm", "contrastive-conv4-glyphs"],
    ],
    ids=["listed", "own, set as a whole"],
)
def test_trials_beyond_the_rates_vary_the_constant_of_the_loss(arms: list[str], tmp_path: Path, data: Path) -> None:
    words = [*arms, "--only", "margin", "--dataset", "glyphs", "--data", str(data), "--out", str(tmp_path)]
    words += ["--seeds", "1", "--trials", "4", "--trial-rates", "1e-4", "--trial-rates", "3.2e-4", "--quiet"]
    settings = (*toys.SETTINGS, "data.validation=0.3")
    main(["benchmark", "run", *words, *(word for setting in settings for word in ("--set", setting))])
    trials = Results(tmp_path, TRIALS_FILE)
    assert 4 <= len(trials) <= 8
    best = max(trials.values(), key=lambda record: record["score"])
    (run,) = Results(tmp_path).values()
    assert run["resolved"][0]["optimizer"]["lr"] == best["rate"]
    assert run["resolved"][0]["objective"]["loss_args"]["margin"] == pytest.approx(0.2 * best["factor"])
    assert {record["factor"] for record in trials.values()} > {1.0}
    with pytest.raises(TrainingError) as refused:  # another budget is another study
        RunSchedule(dataclasses.replace(read_plan(tmp_path), budget=9), tmp_path).begin()
    assert refused.value.code == "other-study"


def test_runs_selected_by_validation_have_trials_of_the_best_epoch(tmp_path: Path, data: Path) -> None:
    plan = dataclasses.replace(plan_of(data), selections=("validation",), only=("margin",))
    records = Results(try_rates(plan, tmp_path).folder, TRIALS_FILE).values()
    for record in records:
        assert record["score"] == max(epoch["validation_map_at_r"] for epoch in record["training"][0]["log"])


@pytest.mark.slow
def test_an_arm_that_is_not_trained_has_no_trials(tmp_path: Path, data: Path) -> None:
    arms = (Arm("start", "margin-$backbone-$dataset", ("schedule.epochs=0",)), toys.STUDY.arms[1])
    study = Study("toys/two", "Before and after", "nowhere", arms, (R1,))
    settings = tuple(text for text in toys.SETTINGS if not text.startswith("schedule.epochs"))
    plan = Plan(study, "glyphs", 1, settings=(*settings, "data.validation=0.3"), data=str(data), rates=RATES)
    schedule = try_rates(plan, tmp_path)
    assert {arm for arm, _ in tried(tmp_path)} == {"contrastive"}
    assert (
        len(run_schedule(schedule, create_study_context(torch.device("cpu"), str(data)), progress=[].append).done) == 2
    )


def test_the_plan_and_the_report_state_rates_scores_and_choice(tmp_path: Path, data: Path) -> None:
    schedule = try_rates(plan_of(data), tmp_path)
    written = json.loads((tmp_path / PLAN_FILE).read_text())
    assert written["rates"] == list(RATES)
    assert {(trial["arm"], trial["rate"]) for trial in written["trials"]} == TRIALS
    assert {(label, chosen["factor"]) for label, chosen in written["chosen"].items()} == {
        ("margin", 1),
        ("contrastive", 1),
    }
    plan = read_plan(tmp_path)
    assert plan == schedule.plan
    report = build_report(plan, tmp_path)
    facts = to_json(report)
    assert (facts["rates"], facts["chosen"]) == (list(RATES), written["chosen"])
    for page in (as_markdown(report), as_html(report)):
        assert "Trials" in page
        for trial in written["trials"]:
            assert f"{trial['score']:.4f}" in page
    assert "--trial-rates 1e-06 --trial-rates 0.1" in command_of(plan)


def test_finished_trials_are_not_repeated(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, trained = runner.train_network, []

    def killed_in_the_third(recipe: object, *args: object, **kwargs: object) -> object:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(recipe)
        return train(recipe, *args, **kwargs)

    monkeypatch.setattr(runner, "train_network", killed_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        try_rates(plan_of(data), tmp_path)
    before = complete_lines(tmp_path / TRIALS_FILE)
    assert len(before) == 2
    again: list[object] = []
    monkeypatch.setattr(
        runner, "train_network", lambda recipe, *rest, **more: again.append(recipe) or train(recipe, *rest, **more)
    )
    schedule = try_rates(read_plan(tmp_path), tmp_path)
    assert len(again) == 2
    assert complete_lines(tmp_path / TRIALS_FILE)[:2] == before
    repeated = try_rates(plan_of(data), tmp_path)  # the command given again
    assert len(again) == 2
    assert repeated.plan == schedule.plan
    (tmp_path / PLAN_FILE).unlink()  # the trials say by which recipes they were made
    other = dataclasses.replace(plan_of(data), settings=(*toys.SETTINGS, "data.validation=0.25"))
    with raises(TrainingError, "other-study"):
        RunSchedule(other, tmp_path).begin()
    assert not (tmp_path / PLAN_FILE).exists()
    assert try_rates(plan_of(data), tmp_path).plan == schedule.plan
    (tmp_path / TRIALS_FILE).unlink()  # plan.json states the choice
    assert try_rates(read_plan(tmp_path), tmp_path).plan == schedule.plan
    assert len(again) == 2


@pytest.mark.slow
def test_trials_read_no_test_images(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = RunSchedule(plan_of(data), tmp_path / "study").begin()
    opened: list[str] = []
    load = measure.datasets.load_dataset
    monkeypatch.setattr(
        measure.datasets, "load_dataset", lambda name, split, root: opened.append(split) or load(name, split, root)
    )
    run_trials(begun, create_study_context(torch.device("cpu"), str(data)), progress=[].append)
    assert tried(tmp_path / "study") == TRIALS
    assert set(opened) == {"train"}


@pytest.mark.slow
def test_an_arm_waits_for_its_trials(tmp_path: Path, data: Path) -> None:
    plan = plan_of(data)
    with claim_folder(trial_folder(tmp_path, "margin", TrialValues(0.1))):  # as if another process had it
        schedule = try_rates(plan, tmp_path)
    work = create_study_context(torch.device("cpu"), plan.data)
    tally = run_schedule(schedule, work, progress=[].append)
    assert {run.arm.label for run in tally.done} == {"contrastive"}
    assert {run.arm.label for run in tally.elsewhere} == {"margin"}
    rest = run_schedule(try_rates(plan, tmp_path), work, progress=[].append)
    assert {run.arm.label for run in rest.done} == {"margin"}


@pytest.mark.slow
def test_a_diverged_trial_has_no_score_and_a_failed_one_is_repeated(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = runner.train_network
    errors = {
        ("margin", 0.1): DivergedError("the loss became nan"),
        ("contrastive", 1e-6): TrainingError("the disk is full"),
    }

    def failing(recipe: object, *args: object, **kwargs: object) -> object:
        if (recipe.method, recipe.optimizer.lr) in errors:
            raise errors[recipe.method, recipe.optimizer.lr]
        return train(recipe, *args, **kwargs)

    monkeypatch.setattr(runner, "train_network", failing)
    schedule = try_rates(plan_of(data), tmp_path)
    arms = {arm.label: arm for arm in schedule.plan.study.arms}
    assert schedule.plan.chosen_values(arms["margin"]) == TrialValues(1e-6)
    assert schedule.plan.lacks_values(arms["contrastive"])
    work = create_study_context(torch.device("cpu"), str(data))
    tally = run_schedule(schedule, work, progress=[].append)
    assert {run.arm.label for run in tally.done} == {"margin"}
    assert {message.rpartition(": ")[2] for _, message in tally.failed} == {"the disk is full"}
    report = build_report(schedule.plan, tmp_path)
    assert "the disk is full" in report.failures.values()
    assert "diverged" in as_markdown(report)
    monkeypatch.setattr(runner, "train_network", train)
    assert not try_rates(schedule.plan, tmp_path).plan.lacks_values(arms["contrastive"])
    assert ("margin", 0.1) in tried(tmp_path)


def test_rates_are_part_of_a_study_and_checked(tmp_path: Path, data: Path) -> None:
    plan = plan_of(data)
    RunSchedule(plan, tmp_path).begin()
    for rates in ((), (1e-6, 0.2)):
        with raises(TrainingError, "other-study"):
            RunSchedule(dataclasses.replace(plan, rates=rates), tmp_path).begin()
    for rates, code in (((0.1,), "invalid-value"), ((0.1, 0.1), "invalid-value"), ((0.1, -1.0), "invalid-value")):
        with raises(UsageError, code):
            plan_from_options(toys.STUDY, "glyphs", rates=rates)
    for rates, budget in (((), 8), (RATES, 2)):
        with raises(UsageError, "invalid-value"):
            plan_from_options(toys.STUDY, "glyphs", rates=rates, budget=budget)
    assert plan_from_options(toys.STUDY, "glyphs", rates=RATES).rates == RATES


def test_missing_images_are_found_before_any_trial(tmp_path: Path, data: Path) -> None:
    plan = dataclasses.replace(plan_of(data), data=str(tmp_path / "nowhere"))
    with pytest.raises(DatasetError):
        runner.prepare_contexts([RunSchedule(plan, tmp_path / "study")], device="cpu")
    assert not (tmp_path / "study").exists()
