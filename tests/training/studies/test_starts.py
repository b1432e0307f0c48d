"""A study's runs start from one model: another one under the recorded name does not join them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.raising import raises
from tests.training.studies import toys
from training.studies.plan import Plan, RunSchedule
from training.studies.runner import adopt_results, create_study_context, perform_runs
from zoo.cli.main import main
from zoo.errors import TrainingError

ARMS = {"margin": "margin-conv4-glyphs", "ms": "ms-conv4-glyphs"}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return toys.images(tmp_path / "pictures")


def train_start(pictures: Path, seed: int) -> None:
    settings = [*toys.SETTINGS, "schedule.epochs=1", "data.validation=0"]
    options: dict[str, Any] = {"seed": seed, "name": "start", "replace": True, "evaluate": False}
    zoo.train("margin-conv4-glyphs", pictures, settings=settings, **options)


def test_a_study_does_not_continue_from_another_model_of_the_name(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fault: runs that started from two models of one name were averaged, and taken over by other studies."""
    settings = [*toys.SETTINGS, "backbone.pretrained=start"]
    study: dict[str, Any] = {"settings": settings, "data": pictures, "out": tmp_path / "study"}
    train_start(pictures, 0)
    zoo.study(ARMS, seeds=1, **study)
    zoo.study(ARMS, seeds=1, **study)
    train_start(pictures, 1)
    with raises(TrainingError, "other-study"):
        zoo.study(ARMS, seeds=2, **study)
    assert main(["benchmark", "resume", str(tmp_path / "study")]) == 1


def test_runs_of_other_weights_and_images_are_not_taken_over(tmp_path: Path, pictures: Path) -> None:
    plan = dataclasses.replace(toys.plan(pictures, 1, settings=("backbone.pretrained=start",)), only=("margin",))

    def adopt(plan: Plan, folder: str) -> int:
        schedule = RunSchedule(plan, tmp_path / folder).begin()
        return adopt_results(schedule, schedule.runs, tmp_path / "first")

    train_start(pictures, 0)
    first = RunSchedule(plan, tmp_path / "first").begin()
    perform_runs(first, first.runs, create_study_context(torch.device("cpu"), str(pictures)), print)
    assert adopt(plan, "second") == 1
    train_start(pictures, 1)
    with raises(TrainingError, "other-study"):
        adopt(plan, "third")
    train_start(pictures, 0)
    assert adopt(plan, "fourth") == 1
    with raises(TrainingError, "other-study"):
        adopt(dataclasses.replace(plan, data=str(toys.images(tmp_path / "more", classes=9))), "fifth")
