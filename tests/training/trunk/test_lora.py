"""Low-rank adapters: start, merge, gradients, and the command that trains them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import zoo
from tests.raising import raises
from tests.training import toys
from tests.training.cached.pictures import CPU, make_model, write_pictures
from training.recipe import Backbone
from training.trainer import Trainer
from training.trunk.lora import SCALE, add_adapters, merge_adapters
from zoo.cli.main import main
from zoo.errors import RecipeError
from zoo.models.network import create_trunk

ARGS = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
VIT = Backbone("vit", "vit_tiny_patch16_224", ARGS)
LAYERS = 2 * 4
"""Two blocks, each with qkv, proj, fc1 and fc2."""


def adapted(trunk: nn.Module, rank: int = 3) -> nn.Module:
    """Return a copy with adapters that change it, in float64."""
    twin = copy.deepcopy(trunk).double()
    add_adapters(twin, rank)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name.endswith(".up"):
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 10)
    return twin.eval()


@pytest.fixture
def trunk() -> nn.Module:
    torch.manual_seed(0)
    return create_trunk("vit_tiny_patch16_224", 3, ARGS).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_adapted_trunk_starts_as_the_trunk(trunk: nn.Module, images: Tensor) -> None:
    expected = trunk(images.float())
    add_adapters(trunk, 4)
    torch.testing.assert_close(trunk(images.float()), expected, rtol=0, atol=0)


def test_merged_weights_are_the_sum_of_the_paper_and_give_the_same_output(trunk: nn.Module, images: Tensor) -> None:
    twin = adapted(trunk)
    expected = twin(images)
    assert not torch.allclose(expected, trunk.double()(images))
    state = {name: value.clone() for name, value in twin.state_dict().items()}
    merge_adapters(twin)
    torch.testing.assert_close(twin(images), expected, rtol=1e-12, atol=1e-12)
    assert twin.state_dict().keys() == trunk.state_dict().keys()
    for layer in (f"blocks.{i}.{name}" for i in range(2) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")):
        base = state[f"{layer}.parametrizations.weight.original"].numpy()
        up, down = (state[f"{layer}.parametrizations.weight.0.{name}"].numpy() for name in ("up", "down"))
        naive = np.array(
            [
                [base[o, i] + SCALE * sum(up[o, r] * down[r, i] for r in range(3)) for i in range(base.shape[1])]
                for o in range(base.shape[0])
            ]
        )
        np.testing.assert_allclose(twin.get_submodule(layer).weight.numpy(), naive, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("architecture", ["beit_base_patch16_224", "eva02_tiny_patch14_224"])
def test_layers_whose_weight_is_read_without_a_call_are_adapted(architecture: str, images: Tensor) -> None:
    """BEiT multiplies by `qkv.weight` itself; a layer that wraps qkv would have no effect."""
    args = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    twin = adapted(create_trunk(architecture, 3, args))
    features = twin(images)
    (features * torch.linspace(-1, 1, features.numel(), dtype=torch.float64).reshape(features.shape)).sum().backward()
    for name, parameter in twin.named_parameters():
        if name.endswith(".up"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_only_adapters_and_heads_learn() -> None:
    recipe = toys.recipe(backbone=Backbone("vit", VIT.architecture, ARGS, tune="lora", rank=2))
    run = Trainer(recipe, toys.noise(), CPU)
    before = {name: value.clone() for name, value in run.network.state_dict().items()}
    samples = np.array([0, 15, 1, 16, 2, 17, 3, 18])
    for _ in range(2):  # A learns only after B has left zero
        loss = torch.stack(list(run.method.loss(run.minibatch(samples, run.data.images(samples), "")).values())).sum()
        run.backward(loss)
        gradients = {name for name, p in run.network.named_parameters() if p.grad is not None}
        run.update()
    adapters = {name for name in before if name.endswith((".up", ".down"))}
    assert len(adapters) == 2 * LAYERS
    assert gradients == adapters | {name for name in before if name.startswith("heads.")}
    after = run.network.state_dict()
    assert {name for name, value in before.items() if not torch.equal(value, after[name])} == gradients
    names = {name for name, _ in create_trunk(VIT.architecture, 3, ARGS).named_parameters()}
    assert {name for name, _ in run.final().trunk.named_parameters()} == names


@pytest.mark.slow
def test_the_command_writes_an_ordinary_model_folder(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_model(own_zoo / "models" / "toy", backbone=VIT)
    root = write_pictures(tmp_path, classes=12)
    words = ["schedule.epochs=2", "schedule.steps=3", "backbone.rank=2", "optimizer.lr=0.01", "precision=fp32"]
    call = ["finetune", str(root), "--from", "toy", "--as", "mine", "--tune", "lora", "--quiet", "--device", "cpu"]
    assert main([*call, "--json", *(part for word in words for part in ("--set", word))]) == 0
    found = json.loads(capsys.readouterr().out)
    record = json.loads((own_zoo / "models" / "mine" / "recipe.json").read_text())["recipe"]["backbone"]
    assert (record["tune"], record["rank"]) == ("lora", 2)
    model = zoo.load("mine", device="cpu")
    assert (model.card.architecture, model.card.architecture_args) == (base.architecture, base.architecture_args)
    old, new = (load_file(own_zoo / "models" / name / "model.safetensors") for name in ("toy", "mine"))
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    if found["kept"] == "trained":
        assert len(changed) == LAYERS
        for name in changed:
            assert torch.linalg.matrix_rank((new[name] - old[name]).double(), rtol=1e-3) <= 2
    else:
        assert not changed
    assert main(["verify", "mine", "--quick", "--device", "cpu"]) == 0


def test_a_trunk_of_convolutions_is_refused_before_images_are_read(own_zoo: Path, tmp_path: Path) -> None:
    from training.finetune import FinetuneRequest, finetune

    make_model(own_zoo / "models" / "toy")
    with raises(RecipeError, "unsupported-model"):
        finetune(tmp_path / "no-such-folder", FinetuneRequest("toy", "mine", tune="lora", device="cpu"))
