"""Short runs on a device that is not the CPU: `python -m tests.training.on_other_device OUT.json CASE...`."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import zoo
from tests.other_device import other_device
from tests.training import toys
from tests.training.methods.batches import method, minibatch, trunk
from training.cached.extraction import extract
from training.cached.feature_folder import TrunkModel, Views
from training.execution import Execution
from training.losses import LOSSES
from training.miners import MINERS
from training.recipe import Augmentation, Batch, Objective, Optimizer, Recipe, Schedule
from training.recipes import RECIPES
from training.trainer import fit
from zoo.data.dataset import Dataset
from zoo.evaluation import gpu, nearest_neighbours
from zoo.evaluation.retrieval import ranking_metrics
from zoo.evaluation.structure import spectral_decay, uniformity
from zoo.models import torch_runtime

IMAGES = [np.random.default_rng(n).integers(0, 256, (30, 40, 3), np.uint8) for n in range(12)]


def _toy(**change: Any) -> Recipe:
    short = {"batch": Batch(12, "spc", 3), "schedule": Schedule(1, 1)}
    return toys.recipe(**{**short, **change})


def _smaller(recipe: Recipe) -> Recipe:
    objective = recipe.objective
    args = {key: 6 if key == "clusters" else value for key, value in objective.method_args.items()}
    return _toy(
        heads=recipe.heads,
        objective=dataclasses.replace(objective, method_args=args),
        batch=dataclasses.replace(recipe.batch, size=12, per_class=3),
    )


def _twins() -> dict[str, Recipe]:
    """Return one recipe for each method and choice of its tasks that the losses and miners do not cover."""
    made = (make() for name, make in RECIPES.items() if name.endswith("-conv4-glyphs"))
    methods = [
        one
        for one in made
        if isinstance(one, Recipe) and (one.objective.method_args or one.objective.method != "plain")
    ]
    chosen = {repr((one.objective, len(one.heads))): one for one in methods}
    return {one.name: _smaller(one) for one in chosen.values()}


def _mined() -> dict[str, Objective]:
    loss = {"ms": "ms", "rho": "margin"}
    args = {"rho": {"miner": "distance-weighted", "probability": 0.5}}
    return {name: Objective(loss.get(name, "triplet"), name, miner_args=args.get(name, {})) for name in MINERS}


FULL = Augmentation(5, 1.2, 1.2, 0.1, 0.1, 0.1, thicken=0.2, flip=0.5, contrast=0.2, brightness=0.2)
RECIPES_BY_CASE: dict[str, Recipe] = {
    **{f"loss {name}": _toy(objective=Objective(name)) for name in LOSSES},
    **{f"miner {name}": _toy(objective=objective) for name, objective in _mined().items()},
    **_twins(),
    "average": _toy(schedule=Schedule(2, 2, "one-cycle", average=0.5)),
    "chunks": _toy(batch=Batch(12, "spc", 3, chunk=4), optimizer=Optimizer("sgd", momentum=0.9, accumulate=2)),
    "memory": _toy(batch=Batch(12, "frd", 3, {"pool": 40}), schedule=Schedule(2, 2)),
    "augmentation": _toy(augmentation=FULL),
    "crops": _toy(augmentation=Augmentation(crop="resized")),
}
COMPARED = ("loss margin", "mic-conv4-glyphs", "diva-conv4-glyphs", "augmentation", "memory")
"""Whose weights are compared with those of the same run on the CPU; torch's draws are the same on both."""


def main(out: Path, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with other_device():
        pass  # at its first gradient torch counts the devices, for good
    out.write_text(json.dumps({name: _tried(CASES[name]) for name in cases}))


def _tried(way: Callable[[], None]) -> str:
    try:
        way()
    except Exception as error:  # all errors are reported
        return f"{type(error).__name__}: {error}"
    return ""


def _run(name: str) -> None:
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        if name in COMPARED:
            made["cpu"] = _trained(name, Path(folder, "cpu"), torch.device("cpu"))
        with other_device() as device:
            made["there"] = _trained(name, Path(folder, "there"), device)
    for here, there in zip(made.get("cpu", []), made["there"], strict=name in COMPARED):
        torch.testing.assert_close(here, there)


def _trained(name: str, folder: Path, device: torch.device) -> list[torch.Tensor]:
    trained = fit(RECIPES_BY_CASE[name], toys.noise(120), folder, Execution(device), progress=False)
    return list(trained.network.cpu().state_dict().values())


def _step(objective: Objective) -> None:
    """Return the loss and the gradient of one minibatch, without the loop of a run."""
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    net = trunk()
    plain = method(objective, labels, {"embedding": 8}, net)
    batch = minibatch(net, labels)
    with other_device() as device:
        net.to(device)
        plain.to(device)
        for name in ("labels", "samples", "images"):
            setattr(batch, name, getattr(batch, name).to(device))
        sum(plain.loss(batch).values()).backward()
        weight = next(net.parameters()).grad
        assert weight is not None
        assert weight.device == device


def _embed() -> None:
    expected = zoo.load("diva-lite0-cub2010", runtime="torch").embed(IMAGES)
    with other_device() as device, mock.patch.object(torch_runtime, "choose_device", return_value=device):
        found = zoo.load("diva-lite0-cub2010", runtime="torch").embed(IMAGES)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def _neighbours() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = nearest_neighbours(rows[:300], rows, 7)
    with other_device() as device, mock.patch.object(gpu, "device", return_value=str(device)):
        found = nearest_neighbours(rows[:300], rows, 7)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _ranking() -> None:
    rows = np.random.default_rng(0).integers(-3, 4, (1500, 4)).astype(np.float32) + 0.5  # with many equal rows
    labels = np.arange(len(rows)) // 3
    expected = ranking_metrics(rows, labels)
    with other_device() as device, mock.patch.object(gpu, "device", return_value=str(device)):
        assert ranking_metrics(rows, labels) == pytest.approx(expected, abs=1e-12)


def _structure() -> None:
    """Run uniformity and singular values."""
    rng = np.random.default_rng(0)
    rows = (np.repeat(rng.normal(size=(100, 16)), 15, axis=0) + 0.1 * rng.normal(size=(1500, 16))).astype(np.float32)

    def measured() -> tuple[float, ...]:
        return uniformity(rows), spectral_decay(rows)

    expected = measured()
    with (
        other_device() as device,
        mock.patch.object(gpu, "device", return_value=str(device)),
        mock.patch.object(gpu, "to_device", wraps=gpu.to_device) as sent,
    ):
        np.testing.assert_allclose(measured(), expected, rtol=1e-5)
    assert sent.call_count == 2


def _features() -> None:
    names = [str(n) for n in range(12)]
    images = Dataset("noise", "train", IMAGES, np.arange(12) // 2, tuple(names[:6]), names)
    views = Views(2, Augmentation(rotate=5), 40)
    made = zoo.load("margin-conv4-glyphs", runtime="torch")
    model = TrunkModel(made.folder, made.card, "margin-conv4-glyphs")
    with tempfile.TemporaryDirectory() as folder, other_device() as device:
        extract(model, images, Path(folder, "f"), views, execution=Execution(device))


def _mixing() -> None:
    """Check that tensors of two devices cannot be mixed, on which the other cases rely."""
    cpu = torch.ones(3, 3)
    with other_device() as device:
        there, row, place = cpu.to(device), torch.ones(3, device=device), torch.tensor([0, 2], device=device)
        assert float((there @ there + 2 * row)[1, 1]) == 5
        assert (there + torch.tensor(1.0))[:, torch.tensor([0, 2])].tolist() == [[2, 2]] * 3
        for wrong in (lambda: there + cpu, lambda: there @ cpu, lambda: cpu[place], lambda: torch.cat([row, cpu[0]])):
            with pytest.raises(RuntimeError, match="different devices"):
                wrong()
        with pytest.raises(Exception, match=r"numpy|convert"):
            there.numpy()


WITHOUT_TRAINING: Mapping[str, Callable[[], None]] = {
    **{f"step of loss {name}": partial(_step, Objective(name)) for name in LOSSES},
    **{f"step of miner {name}": partial(_step, objective) for name, objective in _mined().items()},
    "step of loss npair from a pair a class": partial(_step, Objective("npair", loss_args={"pairs": "first"})),
    "mixing": _mixing,
    "embedding": _embed,
    "neighbours": _neighbours,
    "ranking": _ranking,
    "structure": _structure,
    "features": _features,
}

CASES: Mapping[str, Callable[[], None]] = {
    **{name: partial(_run, name) for name in RECIPES_BY_CASE},
    **WITHOUT_TRAINING,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
