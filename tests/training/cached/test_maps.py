"""Cached views of frozen layers: a step equals one on the images, and methods that need images are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.raising import raises
from tests.training.toys import CPU, SMALL, noise, recipe
from training.cached.maps import chain, split_trunk
from training.execution import Execution, autocast, has_bf16
from training.health.held_out import embed_held_out, embed_pixels
from training.methods import METHODS
from training.recipe import Augmentation, Objective, Recipe, Schedule
from training.trainer import Trainer, fit, training_features
from zoo.errors import RecipeError
from zoo.models.card import Head
from zoo.models.network import create_trunk

FROZEN = dataclasses.replace(SMALL, frozen_stages=2)


def cached(views: int = 3, **change: Any) -> Recipe:
    """Return the toy recipe on cached views."""
    toy = recipe(**{"backbone": FROZEN, **change})
    return dataclasses.replace(toy, data=dataclasses.replace(toy.data, views=views))


def test_a_step_equals_one_on_the_same_images() -> None:
    """Compare the gradients with those of the whole trunk on the images, which no augmentation changes here."""
    data, samples = noise(), np.arange(0, 60, 4)
    gradients = []
    for chosen in (cached(1, augmentation=Augmentation()), recipe(backbone=FROZEN, augmentation=Augmentation())):
        run = Trainer(chosen, data, CPU)
        batch = run.minibatch(samples, data.images(samples), "main")
        run.backward((batch.features * torch.linspace(-1, 1, batch.features.shape[1])).sum())
        gradients.append([parameter.grad for parameter in run.network.trunk.parameters()])
    assert any(gradient is None for gradient in gradients[0])
    for found, expected in zip(*gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))  # float16


def test_frozen_layers_compute_in_the_precision_of_the_run() -> None:
    data, samples = noise(), np.arange(8)
    sizes = dataclasses.replace(recipe().preprocessing, resize=20, crop=20)  # 20 of 16 pixels: positions between them
    run = Trainer(cached(1, augmentation=Augmentation(), precision="bf16", preprocessing=sizes), data, CPU)
    assert run.maps is not None
    trunk, images = run.network.trunk.eval(), run.view(samples, data.images(samples), Augmentation())
    layers = chain(trunk, split_trunk(trunk, images[:1]).frozen)
    with torch.no_grad(), autocast(CPU.device, run.computation.precision):
        expected = layers(images).float()
    found = run.maps.read(samples, None, CPU.device)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)  # float16
    if has_bf16(CPU.device):
        with torch.no_grad():
            assert (found - layers(images)).abs().max() > 2e-3 * expected.abs().max()


def test_views_differ_from_one_another_and_from_the_plain_image() -> None:
    run = Trainer(cached(4), noise(), CPU)
    assert run.maps is not None
    maps = run.maps.maps.float().flatten(2)
    for i in range(5):
        for j in range(i):
            assert (maps[i] - maps[j]).abs().amax(1).min() > 0
    whole = Trainer(recipe(backbone=FROZEN), noise(), CPU)
    torch.testing.assert_close(training_features(run), training_features(whole), rtol=1e-2, atol=1e-2)


def test_held_out_images_pass_through_the_frozen_layers_once() -> None:
    data, sizes = noise(), recipe().preprocessing
    pixels = np.random.default_rng(1).integers(0, 256, (12, sizes.crop, sizes.crop, sizes.channels), np.uint8)
    data = dataclasses.replace(data, validation=(pixels, np.arange(12) // 3))
    run = Trainer(cached(2), data, CPU)
    first = run.validate()
    stem, calls = (
        run.network.trunk.get_submodule(split_trunk(run.network.trunk, torch.zeros(1, 3, 16, 16)).frozen[0]),
        [],
    )
    with torch.no_grad():
        for parameter in run.network.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    expected = embed_pixels(run.network, sizes, pixels, CPU.device)
    hook = stem.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    found = embed_held_out(run.network, data, sizes, CPU.device)
    hook.remove()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert max(calls) == 1  # a single example, for the order of the layers
    assert run.validate() != first


def test_frozen_layers_stay_and_the_model_is_an_ordinary_one(tmp_path: Path) -> None:
    chosen = cached(2, schedule=Schedule(2, 3, average=0.5))
    start = Trainer(chosen, noise(), CPU).network.state_dict()
    network = fit(chosen, noise(), tmp_path, CPU, progress=False).network
    moved = {name for name, value in network.state_dict().items() if not torch.equal(value, start[name])}
    assert moved
    frozen_names = {name for name, p in Trainer(chosen, noise(), CPU).network.named_parameters() if not p.requires_grad}
    assert frozen_names
    assert not moved & frozen_names
    assert network.embed(network.trunk(torch.rand(2, 3, 16, 16))).shape == (2, chosen.dim)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    chosen = cached(2)
    whole = fit(chosen, noise(), tmp_path / "whole", CPU, progress=False)
    half = dataclasses.replace(chosen, schedule=dataclasses.replace(chosen.schedule, epochs=1))
    fit(half, noise(), tmp_path / "parts", CPU, progress=False)
    resumed = fit(chosen, noise(), tmp_path / "parts", CPU, progress=False)
    assert resumed.resumed_at == 1
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name]), name


@pytest.mark.parametrize(
    ("method", "args", "heads"),
    [
        ("plain", {"input_noise": 0.1}, ("embedding",)),
        ("diva", {"alpha": 0.1, "rho": 0}, ("discriminative", "rotation")),
    ],
)
def test_methods_that_change_images_are_refused(
    method: str, args: dict[str, Any], heads: tuple[str, ...], tmp_path: Path
) -> None:
    assert method in METHODS
    objective = Objective("margin", "distance-weighted", method=method, method_args=args)
    chosen = cached(2, objective=objective, heads=tuple(Head(name, 8) for name in heads))
    with raises(RecipeError, "conflicting-settings"):
        fit(chosen, noise(), tmp_path, CPU, progress=False)


def test_dance_takes_its_second_view_from_the_cache(tmp_path: Path) -> None:
    objective = Objective("margin", "distance-weighted", method="diva", method_args={"alpha": 0.1, "rho": 1.0})
    heads = Head("discriminative", 8), Head("dance", 8)
    assert fit(cached(2, objective=objective, heads=heads), noise(), tmp_path / "two", CPU, progress=False).steps == 6
    with raises(RecipeError, "too-few-samples"):
        fit(cached(1, objective=objective, heads=heads), noise(), tmp_path / "one", CPU, progress=False)


def test_runs_with_the_same_frozen_layers_share_the_maps() -> None:
    data = noise()
    first = Trainer(cached(2), data, CPU).maps
    assert Trainer(cached(2, schedule=Schedule(1, 1)), data, CPU).maps is first
    learning = cached(2)
    learning = dataclasses.replace(learning, backbone=dataclasses.replace(learning.backbone, freeze_norm="none"))
    assert Trainer(learning, data, CPU).maps is first
    for other in (cached(3), cached(2, seed=1), cached(2, augmentation=Augmentation(rotate=9))):
        assert Trainer(other, data, CPU).maps is not first


class Skipping(nn.Module):
    """A network with a connection around a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.first.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.second(self.first(images))


def test_trunks_without_a_frozen_first_part_are_refused() -> None:
    image = torch.rand(1, 3, 16, 16)
    with raises(RecipeError, "unsupported-model"):
        split_trunk(Skipping(), image)
    with raises(RecipeError, "unsupported-model"):
        split_trunk(create_trunk("conv4", 3), image)
    with raises(RecipeError, "unsupported-model"):
        split_trunk(create_trunk("conv4", 3).requires_grad_(False), image)
    with raises(RecipeError, "invalid-value"):
        cached(-1)
    with raises(RecipeError, "conflicting-settings"):
        Trainer(cached(), noise(), dataclasses.replace(CPU, compiled=True))


def test_views_are_part_of_the_recipe_only_if_used() -> None:
    assert cached(0).digest == recipe(backbone=FROZEN).digest != cached(2).digest
    assert json.loads(json.dumps(cached(2).to_json()))["data"]["views"] == 2


def test_views_that_do_not_fit_into_memory_are_refused() -> None:
    with raises(RecipeError, "too-large"):
        Trainer(cached(10**9), noise(), Execution(torch.device("cpu")))
