"""Distillation: student and teacher see the same view, and the teacher stays unchanged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training import toys
from tests.training.cached.pictures import CPU, make_model
from training.methods.distillation import open_teacher
from training.recipe import Augmentation, Backbone, Objective, Recipe
from training.trainer import Trainer
from zoo.errors import ModelNotFoundError, RecipeError
from zoo.models.card import Card, Head
from zoo.models.load import load
from zoo.models.network import load_network

SAMPLES = np.arange(8)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("teacher") / "toy"
    return folder, make_model(folder)


def student(teacher: tuple[Path, Card], dim: int = 64, transfer: str = "embedding", **change: Any) -> Recipe:
    folder, card = teacher
    args = {"teacher": str(folder), "fingerprint": card.fingerprint, "transfer": transfer}
    recipe = toys.recipe(
        objective=Objective(None, method="distillation", method_args={**args, **change.pop("args", {})}),
        heads=(Head("embedding", dim),) if dim else (),
        backbone=Backbone("conv4", "conv4", {"widths": [4, 4, 4, 8], "last_pool": False}),
        augmentation=Augmentation(rotate=30, scale=1.3, contrast=0.3, flip=0.5, oversample=1),
    )
    return dataclasses.replace(recipe, **change)


def batch_of(run: Trainer) -> Any:
    return run.minibatch(SAMPLES, run.data.images(SAMPLES), "main")


def test_the_targets_are_the_teachers_embeddings_of_the_students_pixels(teacher: tuple[Path, Card]) -> None:
    run = Trainer(student(teacher), toys.noise(), CPU)
    batch = batch_of(run)
    how = teacher[1].preprocessing
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (how.mean, how.std))
    pixels = 255 * (batch.images * std + mean)
    # Rounding to whole grey levels is all that parts them.
    expected = load(teacher[0]).embed_pixels(pixels.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
    np.testing.assert_allclose(run.method.teacher_embeddings(batch).numpy(), expected, atol=2e-3)
    other = run.method.teacher_embeddings(batch_of(run))  # of other views of the same samples
    assert (other - torch.from_numpy(expected)).abs().max() > 0.01
    raw = run.network.heads["embedding"](batch.features)
    cosines = (normalize(raw, dim=1) * run.method.teacher_embeddings(batch)).sum(1)
    assert run.method.loss(batch)["loss"].item() == pytest.approx(1 - cosines.mean().item(), abs=1e-5)


def test_teacher_and_student_see_the_view_in_their_own_size_and_normalisation(teacher: tuple[Path, Card]) -> None:
    how = dataclasses.replace(teacher[1].preprocessing, resize=32, crop=32, mean=(0.1, 0.2, 0.3))
    run = Trainer(student(teacher, preprocessing=how), toys.noise(), CPU)
    batch = batch_of(run)
    seen = batch.render_for(teacher[1].preprocessing)
    assert batch.images.shape == (8, 3, 32, 32)
    assert seen.shape == (8, 3, 16, 16)
    offset = torch.tensor([0.1, 0.2, 0.3]).reshape(1, 3, 1, 1)
    fine = torch.nn.functional.avg_pool2d(batch.images * 0.25 + offset, 4)
    coarse = torch.nn.functional.avg_pool2d(seen * 0.25 + 0.5, 2)
    similar = torch.corrcoef(torch.stack([fine.flatten(), coarse.flatten()]))[0, 1]
    assert similar > 0.9  # of unlike views of noise it is near 0
    torch.testing.assert_close(batch.render_for(how), batch.images)


@pytest.mark.parametrize("transfer", ["embedding", "rkd", "similarity"])
def test_trunk_and_head_learn_and_the_teacher_stays_unchanged(transfer: str, teacher: tuple[Path, Card]) -> None:
    dim = 64 if transfer == "embedding" else 5
    run = Trainer(student(teacher, dim, transfer), toys.noise(), CPU)
    batch = batch_of(run)
    run.backward(run.method.loss(batch)["loss"])
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in run.network.parameters() if p.ndim > 1)
    (network,) = run.method._teacher
    assert not network.training
    run.method.train()
    assert not network.training
    assert all(p.grad is None for p in network.parameters())
    kept = load_network(teacher[1], teacher[0]).state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in network.state_dict().items())
    assert set(run.method.state_dict()) == {"heads.embedding.weight", "heads.embedding.bias"}


def test_a_student_may_have_no_head(teacher: tuple[Path, Card]) -> None:
    run = Trainer(student(teacher, 0, "rkd"), toys.noise(), CPU)
    assert torch.isfinite(run.method.loss(batch_of(run))["loss"])


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        ({"dim": 32}, "conflicting-settings", ["32", "toy", "64", "rkd or similarity"]),
        ({"dim": 0}, "conflicting-settings", ["8"]),
        ({"heads": (Head("a", 32), Head("b", 32))}, "conflicting-settings", ["'distillation'", "2"]),
        ({"args": {"fingerprint": "0" * 64}}, "other-model", ["000000000000"]),
    ],
)
def test_a_teacher_that_does_not_fit_is_rejected(
    teacher: tuple[Path, Card], change: dict[str, Any], code: str, values: list[str]
) -> None:
    with raises(RecipeError, code) as caught:
        Trainer(student(teacher, **change), toys.noise(), CPU)
    assert all(value in str(caught.value) for value in values)


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"transfer": "embeding"}, "'embedding'"),
        ({"transfer": "rkd", "args": {"transfer_args": {"angel": 1}}}, "'angle'"),
    ],
)
def test_a_mistyped_transfer_or_argument_is_rejected(
    teacher: tuple[Path, Card], change: dict[str, Any], nearest: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        Trainer(student(teacher, **change), toys.noise(), CPU)
    assert nearest in str(caught.value)


def test_a_missing_teacher_and_one_of_other_images_are_rejected(teacher: tuple[Path, Card], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_teacher(str(tmp_path / "nowhere"), "")
    grey = dataclasses.replace(teacher[1].preprocessing, mode="L", mean=(0.5,), std=(0.25,))
    run = Trainer(student(teacher), toys.noise(), CPU)
    with pytest.raises(RecipeError):
        batch_of(run).render_for(grey)
