"""`zoo doctor`: folders of runs and models, output, exit statuses, and what a run keeps while it trains."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.raising import raises
from tests.training.before_torch import assert_refused_before_torch
from tests.training.health.runs import patterns
from tests.training.toys import CPU, noise, recipe
from training import api
from training.health.diagnosis import History, diagnose
from training.health.page import BARS, Curve, bars
from training.health.run_folder import find_run, read_history
from training.recipe import Batch, Objective, Optimizer, Schedule
from training.trainer import Trainer, fit
from zoo.cli.main import main
from zoo.errors import DivergedError, ModelNotFoundError, UsageError
from zoo.models.golden import draw_images

ONE_CLASS = {"objective": Objective("triplet"), "batch": Batch(4, "spc", 4)}


def run(folder: Path, **change: Any) -> Path:
    fit(recipe(**change), noise(), folder, CPU, progress=False)
    return folder


def test_a_healthy_run_ends_with_0_and_a_finding_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(run(tmp_path / "healthy"))]) == 0
    printed = capsys.readouterr().out
    assert "spread" in printed
    assert "oo short to judge" in printed, "two epochs do not show whether a run learns"
    assert main(["doctor", str(run(tmp_path / "broken", **ONE_CLASS))]) == 1
    assert "batch.per_class" in capsys.readouterr().out


def test_json_has_findings_and_indicators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(run(tmp_path, **ONE_CLASS)), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in found["findings"]] == ["one-class-batch"]
    assert [values["epoch"] for values in found["epochs"]] == [1, 2]
    assert found["epochs"][0]["classes"] == 1
    assert (found["healthy"], found["judged"]) == (False, False)


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", **ONE_CLASS)
    assert main(["doctor", str(folder), "-o", str(tmp_path / "a.html")]) == 1
    page = (tmp_path / "a.html").read_text()
    assert "one-class-batch" in page
    assert page.count("data:image/svg+xml") > 5


def test_wrong_use_is_refused_before_torch(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "log.jsonl").write_text('{"epoch": 1, "loss": 0.5}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "ensemble").mkdir()
    (tmp_path / "ensemble" / "recipe.json").write_text('{"ensemble": [{"name": "a"}, {"name": "b"}]}')
    mistakes = [
        ([str(old)], "no-results"),
        ([str(tmp_path / "empty")], "no-results"),
        ([str(tmp_path / "ensemble")], "no-results"),
        ([str(old), "-o", "health.png"], "unknown-format"),
    ]
    assert_refused_before_torch(["doctor"], mistakes)
    for words, _ in mistakes:
        assert main(["doctor", *words]) == 2


def test_a_name_means_the_model_else_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))
    with raises(ModelNotFoundError, "model-not-found"):
        find_run("no-such-run")
    older, newer = (run(tmp_path / "runs" / f"toy-0000000{i}-11111111", seed=i) for i in range(2))
    run(tmp_path / "runs" / "toy-2-00000000-11111111", name="toy-2")
    assert older != newer == find_run("toy")
    (tmp_path / "models" / "toy").mkdir(parents=True)
    assert find_run("toy") == tmp_path / "models" / "toy"


def test_a_model_folder_keeps_the_indicators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))
    setup = api.TrainingSetup(CPU)
    trained, _ = _train(setup, tmp_path)
    folder = tmp_path / "models" / "toy"
    api.write_model_folder(folder, recipe(), trained.network, trained.log, {}, draw_images())
    assert read_history(folder).measured == [record["indicators"] for record in trained.log]
    assert main(["doctor", "toy"]) == 0


def _train(setup: api.TrainingSetup, folder: Path) -> Any:
    data = noise()
    return fit(recipe(), data, folder / "run", setup.execution, progress=False), data


def test_a_finding_is_printed_once_and_a_resumed_run_does_not_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed:
        def write(self, record: dict[str, Any], step: int) -> None:
            if record["epoch"] == 3:
                raise KeyboardInterrupt

        def write_step(self, terms: dict[str, float], step: int) -> None: ...

        def close(self) -> None: ...

    made = recipe(schedule=Schedule(4, 2), **ONE_CLASS)
    whole = fit(made, noise(), tmp_path / "whole", CPU, progress=True).log
    assert capsys.readouterr().err.count("one-class-batch") == 1
    with pytest.raises(KeyboardInterrupt):
        fit(made, noise(), tmp_path / "killed", CPU, progress=False, trackers=(Killed(),))
    resumed = fit(made, noise(), tmp_path / "killed", CPU, progress=False)
    assert resumed.resumed_at == 2
    times = ("seconds", "images_per_second")
    assert [{k: v for k, v in r.items() if k not in times} for r in resumed.log] == [
        {k: v for k, v in r.items() if k not in times} for r in whole
    ]
    assert ["findings" in record for record in resumed.log] == [True, False, False, False]


def test_a_run_that_diverges_keeps_why(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        run(tmp_path, optimizer=Optimizer("sgd", 1e30))
    history = read_history(tmp_path)
    assert history.divergence["input_finite"] is True
    assert [finding.code for finding in diagnose(history)] == ["rate-too-high"]
    run(tmp_path)  # another attempt, in the same folder
    assert read_history(tmp_path).divergence == {}


def test_a_damaged_image_is_not_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_statistics", lambda *args: [torch.tensor(math.nan), torch.tensor(1.0)])
    with pytest.raises(DivergedError):
        run(tmp_path)
    (found,) = diagnose(read_history(tmp_path))
    assert found.code == "diverged"
    assert read_history(tmp_path).divergence["input_finite"] is False


NOISY = Objective("margin", "distance-weighted", method_args={"input_noise": 0.1})


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"heads": (), "objective": NOISY}])
def test_measuring_changes_nothing_that_is_learnt(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = fit(recipe(**change), patterns(1), tmp_path / "a", CPU, progress=False)
    assert "spread" in measured.log[0]["indicators"]
    monkeypatch.setattr("training.health.indicators.chosen_steps", lambda *args: set())
    plain = fit(recipe(**change), patterns(1), tmp_path / "b", CPU, progress=False)
    assert "indicators" not in plain.log[0]
    for a, b in zip(measured.network.parameters(), plain.network.parameters(), strict=True):
        assert a.equal(b)


def test_the_bars_of_a_curve() -> None:
    assert bars(Curve("loss", None, [(1, 0.0), (2, 7.0), (3, 3.0)])) == BARS[0] + BARS[7] + BARS[3]
    assert bars(Curve("loss", None, [(1, 2.0)])) == BARS[0]
    assert len(bars(Curve("loss", None, [(i, float(i)) for i in range(100)]))) == 25


# Findings of records made by hand: the rules' edges.

HEALTHY = {"spread": 0.9, "separation": 0.95, "active": 0.5, "tuples": 9, "violation": 0.1, "update": {"trunk": 0.01}}


def history(
    start: dict[str, Any] | None = None, recall: float | None = 0.9, steps: int = 200, **values: Any
) -> History:
    """Return six epochs, by default long enough that a run should have learnt."""
    scores = {} if recall is None else {"validation_recall_at_1": recall}
    begun = {"trunk_recall_at_1": 0.5, "held_out_images": 400, "held_out_chance": 0.05, "spread": 0.4, **(start or {})}
    records = [
        {"epoch": epoch, "steps": steps, "loss": 1.0, **scores, "indicators": {**HEALTHY, **values}}
        for epoch in range(1, 7)
    ]
    return History([{**records[0], "start": begun}, *records[1:]], {"schedule": {"epochs": 6}})


def codes(of: History) -> list[str]:
    return [finding.code for finding in diagnose(of)]


def test_rules_at_their_edges() -> None:
    assert codes(history()) == []
    assert codes(history(spread=0.001, separation=0.6)) == ["collapsed"]
    assert codes(history(spread=0.001, separation=0.9)) == []  # narrow, but in order
    assert codes(history(active=0.001, separation=0.8)) == ["no-active-tuples"]
    assert codes(history(active=0.001, separation=0.99)) == []  # all is learnt
    assert codes(history(dead_proxies=0.5)) == ["dead-proxies"]
    assert codes(history(recall=0.4)) == ["worse-than-start"]
    assert codes(history(recall=0.48)) == []  # within two standard errors
    assert codes(history(recall=None)) == []
    assert codes(history(recall=None, separation=0.52)) == ["nothing-learnt"]
    assert codes(history(recall=0.5, separation=0.55)) == ["nothing-learnt"]
    assert codes(history(recall=0.6, separation=0.55)) == []  # better than the trunk
    assert codes(history(recall=0.5, separation=0.6, update={"trunk": 1e-6})) == ["rate-too-low"]
    assert codes(history(active=1.0, violation=1.2)) == ["margin-too-large"]
    assert codes(history(active=1.0, own_proxy=0.95, violation=None)) == ["margin-too-large"]
    assert codes(history(active=1.0, violation=0.3)) == []
    assert codes(history(hard_negatives=1.0, spread=0.005, active=1.0)) == ["hard-mining"]
    assert codes(history(hard_negatives=1.0, active=1.0)) == []  # hard mining that works
    drawn = history(hard_negatives=0.998, hard_positives=0.5, spread=0.001, separation=0.6, active=1.0)
    assert codes(drawn) == ["collapsed"]  # by distance, in many dimensions
    assert codes(history(separation=0.7, update={"trunk": 0.2})) == ["rate-too-high"]
    assert codes(history(separation=0.95, update={"trunk": 0.2})) == []  # it learns all the same
    assert codes(history(separation=0.7, update={"trunk": 0.01, "loss": 0.5})) == []


def test_labels_are_wrong_if_no_network_is_better_than_chance() -> None:
    untrained = {"trunk_recall_at_1": 0.06}
    assert codes(history(untrained, recall=0.06)) == ["wrong-labels"]
    assert codes(history(untrained, recall=0.06, steps=10)) == ["wrong-labels"]
    assert codes(history(recall=0.06)) == ["worse-than-start"]  # the trunk tells classes apart: their labels are right
    assert codes(history({**untrained, "held_out_images": 60}, recall=0.06, steps=10)) == []  # too few to tell


def begun_run(images: int, chance: float, trunk: float, recalls: Sequence[float]) -> History:
    """Return a run of 15 steps per epoch that has hardly begun to learn."""
    made = history({"held_out_images": images, "held_out_chance": chance, "trunk_recall_at_1": trunk}, separation=0.6)
    epochs = [
        {**made.records[0], "epoch": epoch, "steps": 15, "validation_recall_at_1": recall}
        for epoch, recall in enumerate(recalls, 1)
    ]
    return History(epochs, {"schedule": {"epochs": len(epochs)}})


def test_right_labels_of_few_classes_that_look_alike_are_no_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Measured on two classes of CIFAR-100, as boy and girl, of 120 images each.
    for trunk, *recalls in ((0.554, 0.583, 0.571, 0.55, 0.579), (0.554, 0.629, 0.583, 0.592, 0.575)):
        alike = begun_run(240, 0.498, trunk, recalls)
        assert (codes(alike), alike.judged) == ([], False)
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, alike.records)))
    assert main(["doctor", str(tmp_path)]) == 0
    assert "data.validation" in capsys.readouterr().out, "more held-out classes would tell"
    assert codes(begun_run(240, 0.197, 0.2, [0.2] * 4)) == ["wrong-labels"]  # five classes


def test_few_held_out_classes_do_not_show_that_a_run_is_worse_than_its_start() -> None:
    few = {"held_out_chance": 0.498}
    assert codes(history(few, recall=0.4)) == []
    assert codes(history(few, recall=0.5, update={"trunk": 0.2})) == []  # it tells its training classes apart


def test_labels_are_right_if_any_stage_of_a_run_is_clearly_above_chance() -> None:
    chance = [0.1] * 29  # of 400 images: a standard error of .015
    assert codes(begun_run(400, 0.1, 0.1, chance)) == ["wrong-labels"]
    assert codes(begun_run(400, 0.1, 0.1, [0.135, *chance])) == ["wrong-labels"]  # the best of many, by chance
    assert codes(begun_run(400, 0.1, 0.15, chance)) == []
    assert codes(begun_run(400, 0.1, 0.1, [0.17, *chance])) == []
    assert codes(begun_run(400, 0.1, 0.1, [*chance, *[0.15] * 15])) == []


def test_the_more_specific_cause_is_named() -> None:
    no_label_fits: dict[str, Any] = {"start": {"trunk_recall_at_1": 0.06}, "recall": 0.06, "separation": 0.5}
    far: dict[str, Any] = {"active": 1.0, "violation": 1.8}
    hard: dict[str, Any] = {"hard_negatives": 1.0, "spread": 0.005, "active": 1.0}
    assert codes(history(**no_label_fits, **far)) == ["margin-too-large"]
    assert codes(history(**no_label_fits, **{**far, **hard})) == ["hard-mining"]
    assert codes(history(**no_label_fits, **{**far, **hard, "update": {"trunk": 0.2}})) == ["rate-too-high"]
    assert codes(history(recall=0.5, separation=0.55, dead_proxies=0.5, update={"trunk": 1e-6})) == ["rate-too-low"]


def test_what_a_run_has_learnt_is_judged_after_more_steps_than_its_state() -> None:
    unlearnt: dict[str, Any] = {"recall": 0.3, "separation": 0.55, "dead_proxies": 0.5, "spread": 0.001}
    assert codes(history(**unlearnt)) == ["collapsed", "dead-proxies", "worse-than-start", "nothing-learnt"]
    short = history(**unlearnt, steps=100)
    assert (codes(short), short.judged) == ([], False)
    shared = [{**record, "tasks": {"class": 100, "auxiliary": 100}} for record in history(**unlearnt).records]
    assert codes(dataclasses.replace(short, records=shared)) == []  # steps of another task do not count
    assert codes(history(recall=0.4, steps=10)) == ["worse-than-start"]  # it tells its training classes apart
    lagging = {"schedule": {"epochs": 6, "average": 0.99}}  # what is measured is an average of 100 steps
    assert codes(dataclasses.replace(history(recall=0.4, steps=10), recipe=lagging)) == []
    assert codes(history(active=1.0, violation=1.2, separation=0.5, steps=10)) == ["margin-too-large"]


def test_a_run_that_gains_is_judged_early() -> None:
    assert history(recall=0.8, separation=0.7, steps=1).judged
    assert not history(recall=0.52, separation=0.7, steps=1).judged


def test_a_run_before_half_of_its_schedule_is_not_judged() -> None:
    begun = history({"trunk_recall_at_1": 0.05}, recall=0.05, separation=0.5, active=1.0, violation=1.8)
    assert codes(dataclasses.replace(begun, records=begun.records[:2])) == []
    assert codes(dataclasses.replace(begun, recipe={"schedule": {"epochs": 100}})) == []
    assert codes(History([], {})) == []


def test_a_finding_names_the_epoch_from_which_it_holds() -> None:
    late = history()
    narrow = {**HEALTHY, "spread": 0.0005, "separation": 0.5}
    records = [*late.records[:3], *({**record, "indicators": narrow} for record in late.records[3:])]
    (found,) = diagnose(dataclasses.replace(late, records=records))
    assert (found.code, found.epoch) == ("collapsed", 5)  # two epochs in a row


def test_an_ensemble_has_no_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"ensemble": [{"name": "a"}]}')
    with raises(UsageError, "no-results"):
        read_history(tmp_path)
