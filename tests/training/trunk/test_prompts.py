"""Prompts of vision transformers: the paper's equations by hand, what learns, and the command that trains them."""

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
from tests.training.trunk.test_lora import ARGS, VIT
from training.recipe import Backbone
from training.trainer import Trainer
from training.trunk.parts import choose_parts, prompted_architecture
from zoo.cli.main import main
from zoo.errors import RecipeError
from zoo.models.backbones.prompted import PromptedBlocks, add_prompts
from zoo.models.network import create_trunk


@pytest.fixture
def trunk() -> nn.Module:
    torch.manual_seed(0)
    return create_trunk("vit_tiny_patch16_224", 3, ARGS).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def by_hand(trunk: nn.Module, images: Tensor, prompts: Tensor, deep: bool) -> Tensor:
    """Equations 4 to 8 of the paper, on the unchanged transformer: class token, prompts, patches."""
    tokens = trunk._pos_embed(trunk.patch_embed(images))
    x, patches = tokens[:, :1], tokens[:, 1:]
    own = prompts[0].expand(len(images), -1, -1)
    for layer, block in enumerate(trunk.blocks):
        if deep:
            own = prompts[layer].expand(len(images), -1, -1)
        z = block(torch.cat([x, own, patches], dim=1))
        x, own, patches = z[:, :1], z[:, 1 : 1 + own.shape[1]], z[:, 1 + own.shape[1] :]
    return trunk.norm(x)[:, 0]


@pytest.mark.parametrize("deep", [True, False], ids=["deep", "shallow"])
def test_a_prompted_transformer_by_hand(trunk: nn.Module, images: Tensor, deep: bool) -> None:
    twin = copy.deepcopy(trunk)
    blocks = add_prompts(twin, 3, deep)
    assert blocks.prompts.shape == (2 if deep else 1, 3, 16)
    assert blocks.prompts.abs().max() <= (6 / (3 * 4 * 4 + 16)) ** 0.5
    torch.testing.assert_close(twin(images), by_hand(trunk, images, blocks.prompts, deep))
    assert not torch.allclose(twin(images), trunk(images), atol=1e-3)
    torch.testing.assert_close(copy.deepcopy(twin)(images), twin(images), rtol=0, atol=0)


def test_pooled_patches_are_those_of_the_image_alone(images: Tensor) -> None:
    args = {**ARGS, "global_pool": "avg"}
    trunk = create_trunk("vit_tiny_patch16_224", 3, args).eval()
    blocks = add_prompts(trunk, 3, deep=True)
    tokens = blocks(trunk._pos_embed(trunk.patch_embed(images)))
    assert tokens.shape == (4, 1 + 16, 16)
    torch.testing.assert_close(trunk(images), trunk.fc_norm(tokens[:, 1:].mean(1)))


@pytest.mark.parametrize("prompting", ["deep", "shallow"])
def test_only_prompts_and_heads_learn(prompting: str) -> None:
    backbone = Backbone("vit", VIT.architecture, ARGS, tune="prompt", prompts=2, prompting=prompting)
    run = Trainer(toys.recipe(backbone=backbone), toys.noise(), CPU)
    before = {name: value.clone() for name, value in run.network.state_dict().items()}
    samples = np.array([0, 15, 1, 16, 2, 17, 3, 18])
    loss = torch.stack(list(run.method.loss(run.minibatch(samples, run.data.images(samples), "")).values())).sum()
    run.backward(loss)
    run.update()
    after = run.network.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"trunk.blocks.prompts", *(name for name in before if name.startswith("heads."))}
    plain = {name for name, _ in create_trunk(VIT.architecture, 3, ARGS).named_parameters()}
    assert {name for name, _ in run.final().trunk.named_parameters()} == plain | {"blocks.prompts"}


def test_the_published_architecture_has_the_prompts() -> None:
    backbone = Backbone("vit", VIT.architecture, ARGS, tune="prompt", prompts=4, prompting="shallow")
    name, args = prompted_architecture(backbone)
    trunk = create_trunk(name, 3, args)
    assert isinstance(trunk.blocks, PromptedBlocks)
    assert trunk.blocks.prompts.shape == (1, 4, 16)
    again = Backbone("vit", name, args, tune="prompt", prompts=9)
    assert prompted_architecture(again) == (name, args)
    choose_parts(trunk, again)  # its own prompts learn on
    assert {name for name, p in trunk.named_parameters() if p.requires_grad} == {"blocks.prompts"}
    assert trunk.blocks.prompts.shape == (1, 4, 16)


@pytest.mark.parametrize("architecture", ["eva02_tiny_patch14_224", "swin_tiny_patch4_window7_224", "conv4"])
def test_other_trunks_are_refused(architecture: str) -> None:
    with raises(RecipeError, "unsupported-model"):
        choose_parts(create_trunk(architecture, 3), Backbone("x", architecture, tune="prompt"))


@pytest.mark.parametrize("wrong", [{"prompts": 0}, {"prompting": "wide"}])
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    with raises(RecipeError, "invalid-value"):
        Backbone("vit", VIT.architecture, ARGS, tune="prompt", **wrong)


@pytest.mark.slow
def test_the_command_writes_a_model_folder_that_loads_exports_and_is_finetuned_again(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(own_zoo / "models" / "toy", backbone=VIT)
    root = write_pictures(tmp_path, classes=12)
    words = ["schedule.epochs=1", "schedule.steps=2", "optimizer.lr=0.01", "precision=fp32", "data.validation=0"]
    settings = [part for word in words for part in ("--set", word)]
    call = ["finetune", str(root), "--from", "toy", "--as", "mine", "--tune", "prompt", "--quiet", "--device", "cpu"]
    assert main([*call, *settings, "--set", "backbone.prompts=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == "trained"
    model = zoo.load("mine", device="cpu")
    assert (model.card.architecture, model.card.architecture_args["prompts"]) == ("prompted", 2)
    old, new = (load_file(own_zoo / "models" / name / "model.safetensors") for name in ("toy", "mine"))
    assert new.keys() - old.keys() == {"blocks.prompts"}
    assert all(torch.equal(tensor, new[name]) for name, tensor in old.items())
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    expected = model.embed_pixels(pixels)
    assert main(["export", "mine"]) == 0
    np.testing.assert_allclose(zoo.load("mine", runtime="onnx").embed_pixels(pixels), expected, atol=1e-5)
    assert main(["verify", "mine", "--quick", "--device", "cpu"]) == 0
    again = ["finetune", str(root), "--from", "mine", "--as", "more", "--tune", "prompt", "--quiet", "--device", "cpu"]
    assert main([*again, *settings]) == 0
    more = load_file(own_zoo / "models" / "more" / "model.safetensors")
    assert {name for name in new if not torch.equal(new[name], more[name])} == {"blocks.prompts"}
