"""The training loop on a toy data set: learning, repeatability, resuming after a kill, and selection."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from tests import children
from tests.raising import raises
from tests.training import one_run
from tests.training.toys import CPU, SMALL
from training import api, checkpoint, data
from training.data import held_out_classes
from training.logging import Log
from training.optim import learning_rate_factor
from training.recipe import Augmentation, Batch, Data, Recipe, Schedule
from training.recipes import RECIPES
from training.trainer import fit, lock_run_folder
from zoo.data.dataset import Dataset
from zoo.errors import RecipeError, TrainingError


def toy(**change: Any) -> Recipe:
    recipe = dataclasses.replace(
        RECIPES["margin-conv4-glyphs"](),
        name="toy",
        backbone=SMALL,
        data=Data("glyphs", side=32),
        augmentation=Augmentation(rotate=5, translate=0.05, contrast=0.1, oversample=1),
        batch=Batch(32, "spc", 4),
        schedule=Schedule(3, 6, "one-cycle", average=0.5),
        precision="fp32",
    )
    return dataclasses.replace(recipe, **change)


@pytest.fixture(scope="module")
def thirty_classes() -> Dataset:
    """Return the first classes of the training split; drawing all would take seconds."""
    full = zoo.data.load_dataset("glyphs", "train")
    rows = np.flatnonzero(full.labels < 30)
    return dataclasses.replace(
        full,
        images=[full.images[row] for row in rows],
        labels=full.labels[rows],
        classes=full.classes[:30],
        sources=[full.sources[row] for row in rows],
        factors={},
    )


@pytest.fixture
def few(thirty_classes: Dataset, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Let the data set `glyphs` consist of these classes."""
    monkeypatch.setattr(zoo.data, "load_dataset", lambda *_: thirty_classes)
    return thirty_classes


@pytest.fixture(scope="module")
def small_glyphs(thirty_classes: Dataset) -> data.TrainingData:
    """Return training data with five classes held out."""
    return data.prepare(toy(data=Data("glyphs", side=32, validation=1 / 6)), thirty_classes)


def curve(log: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    return [(r["loss"], r["validation_recall_at_1"], r["validation_map_at_r"]) for r in log]


@pytest.mark.slow
def test_training_lowers_the_loss_and_repeats_itself(tmp_path: Path, small_glyphs: data.TrainingData) -> None:
    recipe = toy(schedule=Schedule(5, 10, "one-cycle", average=0.5))
    first = fit(recipe, small_glyphs, tmp_path / "a", CPU, progress=False)
    again = fit(recipe, small_glyphs, tmp_path / "b", CPU, progress=False)
    assert curve(first.log) == curve(again.log)
    assert first.log[-1]["loss"] < first.log[0]["loss"]
    for a, b in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(a, b)
    other = fit(dataclasses.replace(recipe, seed=1), small_glyphs, tmp_path / "c", CPU, progress=False)
    assert curve(other.log) != curve(first.log)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [Batch(32, "spc", 4), Batch(32, "frd", 4, {"pool": 100})])
def test_an_interrupted_run_has_the_log_of_an_uninterrupted_one(
    tmp_path: Path, small_glyphs: data.TrainingData, monkeypatch: pytest.MonkeyPatch, batch: Batch
) -> None:
    recipe = toy(batch=batch)
    whole = fit(recipe, small_glyphs, tmp_path / "whole", CPU, progress=False)
    saved = checkpoint.save

    def stop_after_two(value: dict[str, Any], path: Path) -> None:
        if value["epoch"] == 3:
            raise KeyboardInterrupt  # the log has epoch 3 already, the checkpoint does not
        saved(value, path)

    monkeypatch.setattr(checkpoint, "save", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, small_glyphs, tmp_path / "cut", CPU, progress=False)
    monkeypatch.undo()
    rest = fit(recipe, small_glyphs, tmp_path / "cut", CPU, progress=False)
    assert rest.resumed_at == 2
    assert curve(rest.log) == curve(whole.log)
    assert rest.best_epoch == whole.best_epoch
    for a, b in zip(rest.network.state_dict().values(), whole.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    lines = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]


@pytest.mark.slow
def test_kill_9_then_the_same_command_gives_the_identical_curve(tmp_path: Path) -> None:
    log = tmp_path / "killed" / "log.jsonl"
    process = children.start(one_run.main, tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    epochs = log.read_text().count("\n")
    assert epochs < one_run.EPOCHS
    one_run.main(tmp_path / "killed")
    one_run.main(tmp_path / "whole")
    logs = [(tmp_path / folder / "log.jsonl").read_text().splitlines() for folder in ("killed", "whole")]
    killed, whole = ([json.loads(line) for line in log] for log in logs)
    assert [record["loss"] for record in killed] == [record["loss"] for record in whole]
    assert len(killed) == one_run.EPOCHS


@pytest.mark.usefixtures("few")
def test_training_by_name_writes_a_loadable_model_folder(own_zoo: Path) -> None:
    recipe = dataclasses.replace(toy(), name="by-name", schedule=Schedule(1, 3, "one-cycle", average=0.5))
    outcome = api.train(recipe, progress=False, evaluate=False)
    assert outcome.folder == own_zoo / "models" / "by-name"
    model = zoo.load("by-name")
    embeddings = model.embed([np.zeros((40, 40, 3), np.uint8), "tests/conftest.py"][:1])
    assert embeddings.shape == (1, recipe.dim)
    assert np.linalg.norm(embeddings) == pytest.approx(1, abs=1e-6)
    record = json.loads((outcome.folder / "recipe.json").read_text())
    assert record["recipe"] == recipe.record
    assert record["versions"]["torch"] == torch.__version__.split("+")[0] or record["versions"]["torch"]
    assert not list((own_zoo / "runs").glob("*/checkpoint.safetensors"))
    assert zoo.info("by-name").status == "trained"


def test_the_splits_have_no_class_in_common() -> None:
    test, train = zoo.data.load_dataset("glyphs", "test"), zoo.data.load_dataset("glyphs", "train")
    assert not set(test.classes) & set(train.classes)


def test_held_out_classes_are_training_classes_and_never_trained_on(few: Dataset) -> None:
    recipe, full = toy(), few
    held_out = held_out_classes(len(full.classes), recipe.data, recipe.seed)
    assert len(held_out) == round(0.1 * len(full.classes))
    loaded = data.prepare(recipe, full)
    assert loaded.validation is not None
    assert set(loaded.validation[1]) == set(held_out)
    assert len(loaded.squares) + len(loaded.validation[0]) == len(full)
    assert loaded.classes == len(full.classes) - len(held_out)


def test_quarter_turns_are_further_classes(small_glyphs: data.TrainingData) -> None:
    turned = dataclasses.replace(small_glyphs, turns=4, labels=np.arange(8))
    samples = np.array([0, 5, 7])
    turns, aspects = turned.geometry(samples)
    assert turns.tolist() == [0, 1, 3]
    assert aspects.tolist() == [1, 1, 1]
    assert torch.equal(turned.images(samples)[1], small_glyphs.squares[1])


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.01])
def test_an_impossible_validation_share_is_refused(share: float) -> None:
    with pytest.raises(RecipeError):
        held_out_classes(30, Data("glyphs", validation=share), 0)


def test_other_images_are_another_run(small_glyphs: data.TrainingData) -> None:
    digests = {
        small_glyphs.digest,
        dataclasses.replace(small_glyphs, squares=small_glyphs.squares.flip(0)).digest,
        dataclasses.replace(small_glyphs, labels=small_glyphs.labels[::-1]).digest,
        dataclasses.replace(small_glyphs, validation=None).digest,
    }
    assert len(digests) == 4


def test_two_processes_do_not_train_one_run(tmp_path: Path, small_glyphs: data.TrainingData) -> None:
    with lock_run_folder(tmp_path), raises(TrainingError, "busy"):
        fit(toy(), small_glyphs, tmp_path, CPU, progress=False)


def test_the_log_of_a_resumed_run_keeps_its_epochs(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3, "lo')
    assert Log(tmp_path / "log.jsonl", keep=2).records == [{"epoch": 1}, {"epoch": 2}]
    assert (tmp_path / "log.jsonl").read_text() == '{"epoch": 1}\n{"epoch": 2}\n'
    assert Log(tmp_path / "log.jsonl").records == []


def test_a_damaged_checkpoint_is_named(tmp_path: Path, small_glyphs: data.TrainingData) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    with raises(TrainingError, "unreadable-file"):
        fit(toy(), small_glyphs, tmp_path, CPU, progress=False)


def test_state_round_trip(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, {"x": torch.arange(3)}], 7: {"t": torch.ones(2, 2)}, "s": "text"}
    checkpoint.save(value, tmp_path / "s.safetensors")
    loaded = checkpoint.load(tmp_path / "s.safetensors")
    assert loaded["a"][:3] == [1, 2.5, None]
    assert torch.equal(loaded["a"][3]["x"], torch.arange(3))
    assert torch.equal(loaded[7]["t"], torch.ones(2, 2))
    assert loaded["s"] == "text"


def test_one_cycle_by_hand() -> None:
    schedule = Schedule(2, name="one-cycle", warmup=0.2)
    assert learning_rate_factor(schedule, 0, 50) == pytest.approx(0.04)
    assert learning_rate_factor(schedule, 20, 50) == pytest.approx(1)
    assert learning_rate_factor(schedule, 60, 50) == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)))
    assert learning_rate_factor(schedule, 100, 50) == pytest.approx(0, abs=1e-12)
    assert learning_rate_factor(Schedule(1), 50, 100) == 1


def test_multi_step_by_hand() -> None:
    schedule = Schedule(5, name="multi-step", milestones=(2, 4), gamma=0.3)
    factors = [learning_rate_factor(schedule, step, 10) for step in (0, 19, 20, 39, 40, 49)]
    assert factors == pytest.approx([1, 1, 0.3, 0.3, 0.09, 0.09])
