"""Generalised-mean pooling of timm models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch
from PIL import Image
from safetensors.numpy import load_file

import zoo
from tests.models import CARD, make_model
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import RecipeError, UsageError
from zoo.models.backbones import register
from zoo.models.golden import draw_images
from zoo.models.network import create_trunk, half_state

register()
ARGS = {"widths": [4, 4, 8, 8], "last_pool": False}


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_pooling_by_definition(p: float) -> None:
    net = timm.create_model("gem", architecture="conv4", p=p, **ARGS).eval()
    maps = net.forward_features(torch.rand(2, 3, 28, 28)).detach()
    expected = [[(channel**p).mean() ** (1 / p) for channel in image] for image in maps.clamp(min=1e-6).double()]
    torch.testing.assert_close(net.global_pool(maps), torch.tensor(expected).float())


def test_weights_keep_their_names() -> None:
    plain = timm.create_model("conv4", in_chans=3, num_classes=0, **ARGS)
    net = timm.create_model("gem", architecture="conv4", **ARGS)
    net.load_state_dict(plain.state_dict())
    assert timm.create_model("gem", architecture="conv4", p=1, **ARGS).state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("args", [{"architecture": "vit_tiny_patch16_224"}, {"architecture": "conv4", "p": 0}, {}])
def test_what_cannot_be_pooled_is_refused(args: dict[str, object]) -> None:
    with raises(RecipeError, "unsupported-model"):
        create_trunk("gem", 3, args)


def test_baseline_with_gem_shrinking_and_half_storage(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """timm loads the trunk from the folder; torch and the graph agree, and both hold the weights in float16."""
    make_model(tmp_path / "toy", dataclasses.replace(CARD, heads=(), dim=16))
    (tmp_path / "pictures").mkdir()
    for i, picture in enumerate(draw_images(12, seed=3)):
        Image.fromarray(picture).save(tmp_path / "pictures" / f"{i}.png")
    command = ["baseline", str(tmp_path / "toy"), "--size", "32", "--gem", "2", "--half", "--as"]
    whiten = ["--whiten", str(tmp_path / "pictures"), "--dim", "6", "--shrink", "0.5"]
    assert main([*command, "mine", *whiten]) == main(["export", "mine"]) == 0
    folder, files = own_zoo / "models" / "mine", sorted((tmp_path / "pictures").iterdir())
    rows = zoo.load("mine", runtime="torch").embed(files)
    assert (zoo.load("mine", runtime="onnx").embed(files) * rows).sum(1).min() > 0.9999999
    stored = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {np.dtype(np.float16), np.dtype(np.int64)}
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    halves = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT16]
    assert len(halves) == sum(weight.ndim > 1 for weight in stored.values()) + 1
    trunk = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert (trunk.global_pool.p, trunk.blocks[0][0].weight.dtype) == (2, torch.float32)
    assert main(["export", "mine", "--precision", "fp16", "--no-cost"]) == 0
    assert main(["verify", "mine", "--quick"]) == 0
    assert main([*command, "other", "--gem", "-1"]) == 2
    assert "--gem" in capsys.readouterr().err


def test_weights_that_float16_does_not_hold_are_refused() -> None:
    trunk = create_trunk("conv4", 3, ARGS)
    torch.nn.init.constant_(trunk.blocks[0][0].weight, 1e5)
    with raises(UsageError, "not-available"):
        half_state(trunk)
