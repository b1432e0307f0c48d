"""Steps of a run: accumulation, chunks, prefetching, failures, logging and trackers."""

from __future__ import annotations

import dataclasses
import functools
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from tests.raising import raises
from tests.training.toys import CPU, SMALL, noise, recipe
from training import api, checkpoint
from training.build import create_sampler
from training.data import prefetch
from training.execution import Computation, Execution
from training.logging import Log, create_trackers
from training.recipe import Augmentation, Batch, Data, Objective, Optimizer, Schedule
from training.trainer import CHECKPOINT, Trainer, fit
from zoo.data.dataset import Dataset
from zoo.errors import DatasetError, MissingDependencyError, RecipeError, TrainingError, UsageError
from zoo.models.card import Head

FROZEN = dataclasses.replace(SMALL, freeze_norm="statistics")
ALL_PAIRS = Objective("margin", loss_args={"beta": 1.2})


def gradients(run: Trainer, samples: np.ndarray, together: int = 1) -> list[Tensor]:
    run.network.train()
    terms = run.method.loss(run.minibatch(samples, run.data.images(samples), "main"))
    run.backward(torch.stack(list(terms.values())).sum(), together)
    return [p.grad.clone() for p in run.network.parameters() if p.grad is not None]


def test_chunks_change_memory_and_nothing_else() -> None:
    plain = recipe(backbone=FROZEN, objective=ALL_PAIRS, augmentation=Augmentation(oversample=1))
    samples = np.array([0, 15, 1, 16, 2, 17, 3, 18])
    whole = gradients(Trainer(plain, noise(), CPU), samples)
    chunks = dataclasses.replace(plain, batch=Batch(8, "spc", 2, chunk=3))
    chunked = gradients(Trainer(chunks, noise(), CPU), samples)
    for a, b in zip(whole, chunked, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_accumulated_gradients_are_the_mean_over_the_batches(tmp_path: Path) -> None:
    quick = recipe(
        backbone=FROZEN,
        objective=ALL_PAIRS,
        augmentation=Augmentation(oversample=1),
        optimizer=Optimizer("sgd", 0.1, 0.0, 0.1, accumulate=2),
        schedule=Schedule(1, 3),  # the third batch makes an update by itself
    )
    trained = fit(quick, noise(), tmp_path, CPU, progress=False).network
    run = Trainer(quick, noise(), CPU)
    batches = list(create_sampler(quick, noise().labels).epoch(0, 3))
    for group in (batches[:2], batches[2:]):
        found = [gradients(run, samples, len(group)) for samples in group]  # they add up
        with torch.no_grad():
            for parameter, gradient in zip(run.network.parameters(), found[-1], strict=True):
                parameter -= 0.1 * gradient
            run.method.objective.beta -= 0.1 * run.method.objective.beta.grad
        run.optimizer.zero_grad()
    for a, b in zip(trained.parameters(), run.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_prefetching_keeps_the_order_and_draws_no_further_ahead_than_asked() -> None:
    drawn: list[int] = []

    def draws() -> Iterator[int]:
        for i in range(6):
            drawn.append(i)
            yield i

    def fetch(i: int) -> int:
        time.sleep(0.001 * (6 - i))
        return 10 * i

    for ahead in (0, 2):
        drawn.clear()
        seen = []
        for draw, images in prefetch(draws(), fetch, ahead):
            assert len(drawn) <= draw + 1 + ahead
            seen.append((draw, images))
        assert seen == [(i, 10 * i) for i in range(6)]


def test_a_failure_while_fetching_reaches_the_loop() -> None:
    def fetch(i: int) -> int:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        list(prefetch(iter([1]), fetch, 2))


def test_the_batch_of_an_infinite_loss_is_kept_and_named(tmp_path: Path) -> None:
    quick = recipe(optimizer=Optimizer("sgd", 1e30))
    with raises(TrainingError, "diverged") as caught:
        fit(quick, noise(), tmp_path, CPU, progress=False)
    for value in ("epoch 1,", "bad-batch-0.safetensors", "noise/0"):
        assert value in str(caught.value)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    kept = load_file(tmp_path / "bad-batch-0.safetensors")
    assert kept["images"].shape == (8, 3, 16, 16)
    assert (kept["samples"] % 15 == kept["labels"]).all()


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = recipe(schedule=Schedule(2, 3))
    written = checkpoint.save
    small = resource.getrlimit(resource.RLIMIT_FSIZE)

    def second_finds_no_room(value: dict[str, object], path: Path) -> None:
        if value["epoch"] == 2:
            # The system itself refuses to make the file larger, as a full disk does.
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, small[1]))
        try:
            written(value, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, small)

    monkeypatch.setattr(checkpoint, "save", second_finds_no_room)
    with raises(TrainingError, "not-writable"):
        fit(quick, noise(), tmp_path, CPU, progress=False)
    monkeypatch.undo()
    assert checkpoint.load(tmp_path / CHECKPOINT)["epoch"] == 1
    assert not list(tmp_path.glob(".*"))
    assert fit(quick, noise(), tmp_path, CPU, progress=False).resumed_at == 1


def test_a_full_disk_gives_errors_for_the_log_and_does_not_hide_the_loss(tmp_path: Path) -> None:
    log, small = Log(tmp_path / "log.jsonl"), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.write({"epoch": 1})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, small[1]))
        with raises(TrainingError, "not-writable"):
            log.write({"epoch": 2, "loss": 0.5})
        with raises(TrainingError, "diverged") as caught:
            fit(recipe(optimizer=Optimizer("sgd", 1e30)), noise(), tmp_path, CPU, progress=False)
        assert "noise/0" in str(caught.value)
        assert not (tmp_path / "bad-batch-0.safetensors").exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, small)
    assert Log(tmp_path / "log.jsonl", keep=1).records == []  # the run began afresh


def test_a_damaged_image_ends_a_run_or_is_left_out_and_counted(tmp_path: Path, own_zoo: Path) -> None:
    pixels, paths = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), np.uint8), []
    for i, square in enumerate(pixels):
        paths.append(tmp_path / f"{i:02d}.png")
        Image.fromarray(square).save(paths[-1])
    paths[13].write_bytes(b"no image")
    labels, names = np.arange(24) % 6, [path.name for path in paths]
    dataset = Dataset("pictures", "train", paths, labels, tuple("abcdef"), names)
    with pytest.raises(DatasetError) as caught:
        api.train(recipe(), progress=False, dataset=dataset)
    assert "13.png" in str(caught.value)
    with pytest.raises(RecipeError):  # before images are read
        api.train(recipe(batch=Batch(10, "spc", 5)), progress=False, dataset=dataset)
    asked = recipe(data=Data("glyphs", side=16, validation=0, skip_unreadable=True))
    outcome = api.train(asked, progress=False, dataset=dataset)
    assert outcome.skipped == 1
    assert outcome.summary().startswith("1 image could not be read; left out.")
    assert json.loads((outcome.folder / "recipe.json").read_text())["skipped"] == ["13.png"]


WANDB = """
import json
class Run:
    def __init__(self, **quick):
        self.file = open(quick["dir"] + "/log.jsonl", "w")
        self.record(quick["project"], quick["name"], quick["config"]["optimizer"]["lr"])
    def record(self, *what):
        self.file.write(json.dumps(what) + "\\n")
    def log(self, values, step):
        self.record(step, values)
    def finish(self):
        self.file.close()
init = Run
"""


def test_weights_and_biases_gets_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A replacement of the few calls: we do not depend on the library itself.
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tracker,) = create_trackers(["wandb"], recipe(), tmp_path)
    tracker.write_step({"step/loss": 0.75}, 3)
    tracker.write({"epoch": 1, "loss": 0.5, "terms": {"own": 0.25}}, 3)
    tracker.close()
    monkeypatch.delitem(sys.modules, "wandb")
    start, step, epoch = (json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines())
    assert start == ["dml-zoo", "toy", recipe().optimizer.lr]
    assert step == [3, {"step/loss": 0.75}]
    assert epoch == [3, {"epoch": 1, "loss": 0.5, "terms/own": 0.25}]


def test_terms_are_logged_and_tracked(tmp_path: Path) -> None:
    trackers = create_trackers(["tensorboard"], recipe(), tmp_path)
    fit(recipe(), noise(), tmp_path, CPU, progress=False, trackers=trackers)
    for tracker in trackers:
        tracker.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"loss", "lr", "images_per_second"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [3, 6], "the last step of each epoch"
    assert [event.step for event in events.Scalars("step/loss")] == [1, 2, 3, 4, 5, 6]


def test_unknown_and_missing_trackers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(UsageError, "unknown-name"):
        create_trackers(["tensorbord"], recipe(), tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with raises(MissingDependencyError):
        create_trackers(["wandb"], recipe(), tmp_path)


@pytest.mark.slow
def test_compiled_and_plain_trunks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    # The graph is captured as ever, but not turned into machine code, which takes a minute.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    plain = Trainer(recipe(), noise(), CPU)
    compiled = Trainer(recipe(), noise(), Execution(CPU.device, compiled=True))
    for run in (plain, compiled):
        run.network.eval()
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled.features(images), plain.features(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("able", [True, False])
def test_bf16_is_for_the_trunk_on_devices_that_have_it(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.execution.has_bf16", lambda device: able)
    quick = recipe(backbone=FROZEN, objective=ALL_PAIRS)
    samples, seen, found = np.array([0, 15, 1, 16, 2, 17, 3, 18]), [], []
    for precision in ("fp32", "bf16"):
        run = Trainer(dataclasses.replace(quick, precision=precision), noise(), CPU)
        convolution = next(m for m in run.network.trunk.modules() if isinstance(m, torch.nn.Conv2d))
        convolution.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
        found.append(gradients(run, samples))
    assert seen == [torch.float32, torch.bfloat16 if able else torch.float32]
    for exact, rough in zip(*found, strict=True):
        assert rough.dtype == torch.float32
        assert (exact - rough).norm() <= (0.1 if able else 0) * exact.norm()


CHOICES = [Computation("fp32", "contiguous"), Computation("fp32"), Computation("bf16", "contiguous")]


@pytest.mark.parametrize("chosen", CHOICES)
def test_the_fastest_computation_is_used_recorded_and_kept_by_a_resumed_run(
    chosen: Computation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.execution.has_bf16", lambda device: True)
    measured = []

    def choose(forms: dict[Computation, Callable[[], None]]) -> Computation:
        for form in forms.values():
            form()
        measured.append(set(forms))
        return chosen

    monkeypatch.setattr("training.execution.fastest", choose)
    quick = recipe(precision="auto", schedule=Schedule(epochs=1, steps=2))
    trained = fit(quick, noise(), tmp_path, CPU, progress=False)
    assert trained.computation == chosen
    assert measured == [{Computation(p, f) for p in ("fp32", "bf16") for f in ("contiguous", "channels_last")}]
    saved = checkpoint.load(trained.checkpoint)
    monkeypatch.setattr("training.execution.fastest", lambda forms: pytest.fail("measured again"))
    run = Trainer(quick, noise(), CPU, resumes=True)
    run.restore(saved)
    assert run.computation == chosen
    convolution = next(m for m in run.network.trunk.modules() if isinstance(m, torch.nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=chosen.layout)


def test_measuring_changes_neither_the_weights_nor_the_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(forms: dict[Computation, Callable[[], None]]) -> Computation:
        for form in forms.values():
            form()
        return Computation("fp32")

    monkeypatch.setattr("training.execution.fastest", choose)
    states, numbers = [], []
    for precision in ("fp32", "auto"):
        run = Trainer(recipe(precision=precision), noise(), CPU)
        states.append(run.network.state_dict())
        numbers.append(torch.rand(4))
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)
    torch.testing.assert_close(numbers[1], numbers[0], rtol=0, atol=0)


def test_samplers_by_embeddings_need_a_head_and_the_classes(tmp_path: Path) -> None:
    headless = recipe(heads=(), batch=Batch(8, "ddm", 2, {"pool": 20}))
    with raises(RecipeError, "conflicting-settings"):
        fit(headless, noise(), tmp_path / "a", CPU, progress=False)
    objective = Objective("margin", "distance-weighted", method="mic", method_args={"groups": 6})
    groups = recipe(objective=objective, heads=(Head("class", 8),), batch=Batch(8, "ddm", 2, {"pool": 20}))
    with raises(RecipeError, "conflicting-settings"):
        fit(groups, noise(), tmp_path / "b", CPU, progress=False)


@pytest.mark.parametrize(
    ("method", "heads", "args", "tasks"),
    [
        ("plain", ("embedding",), {}, {}),
        ("sharing", ("discriminative", "shared"), {}, {"discriminative": 3, "shared": 3}),
        ("sharing", ("discriminative",), {"arm": "discriminative"}, {}),
        ("mic", ("class",), {"groups": 10}, {"class": 3, "auxiliary": 2}),
    ],
)
def test_an_epoch_without_steps_of_its_own_has_as_many_iterations_as_the_images_fill(
    method: str, heads: tuple[str, ...], args: dict[str, object], tasks: dict[str, int], tmp_path: Path
) -> None:
    """60 images are three batches of 18; the log counts the batches and images of all tasks."""
    objective = Objective("margin", loss_args={"beta": 1.2}, method=method, method_args=args)
    quick = recipe(
        objective=objective,
        heads=tuple(Head(name, 8) for name in heads),
        batch=Batch(18, "spc", 2),
        schedule=Schedule(2),
    )
    trained = fit(quick, noise(), tmp_path, CPU, progress=False)
    steps = sum(tasks.values()) or (6 if method == "sharing" else 3)
    assert [record["steps"] for record in trained.log] == [steps, steps]
    assert [record["images"] for record in trained.log] == [18 * steps, 18 * steps]
    assert [record.get("tasks", {}) for record in trained.log] == [tasks, tasks]
    assert (trained.steps, trained.images) == (2 * steps, 36 * steps)
