"""Trunks and heads of the user in our trainer, and the folders of their models."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import zoo
from tests.raising import raises
from zoo import paths
from zoo.cli.main import main
from zoo.errors import ModelFolderError, RecipeError, UsageError

SHORT = {"schedule.epochs": 1, "schedule.steps": 2, "precision": "fp32"}
STILL = {**SHORT, "optimizer.lr": 0, "data.validation": 0}
MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8, in_chans=3):
        super().__init__()
        self.width, self.in_chans = width, in_chans
        self.body = nn.Sequential(nn.Conv2d(in_chans, width, 3, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def forward(self, x):
        return self.body(x)

class Head(nn.Module):
    def __init__(self, in_features, embedding_size, hidden=16):
        super().__init__()
        self.in_features, self.embedding_size, self.hidden = in_features, embedding_size, hidden
        self.body = nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, embedding_size))

    def forward(self, x):
        return self.body(x)

class Unkept(Net):
    def __init__(self, channels=8):
        super().__init__(channels)

class Flat(nn.Module):
    def forward(self, x):
        return x

class Around(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)

class Hidden(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Conv2d(3, width, 3)

    def forward(self, x):
        return self.body(x).mean((2, 3))

def make(width=7):
    return Hidden(width)
"""
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the user, in the current folder, with an empty zoo."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ownnets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import ownnets  # type: ignore[import-not-found]

    yield ownnets
    sys.modules.pop("ownnets", None)


def train(name: str, settings: dict[str, Any] = SHORT, **parts: Any) -> Any:
    return zoo.train("margin-conv4-glyphs", settings=settings, name=name, evaluate=False, **parts)


def images(pixels: np.ndarray) -> Tensor:
    """Pixels as the recipe's preprocessing gives them to a network."""
    return torch.from_numpy((pixels / 255 - 0.5) / 0.25).permute(0, 3, 1, 2).float()


@pytest.mark.slow
def test_a_module_starts_with_its_weights_and_loads_again(own: Any) -> None:
    net, head = own.Net(width=6), own.Head(24, 5)
    trained = train("mine", STILL, backbone=net, head=head)
    expected = torch.nn.functional.normalize(head(net(images(PIXELS))), dim=1).detach().numpy()
    np.testing.assert_allclose(zoo.load(trained).embed(list(PIXELS)), expected, atol=1e-5)
    info = zoo.info("mine")
    assert (info.backbone, info.dim) == ("custom-Net-custom-Head", 5)
    script = "import zoo; print(zoo.load('mine').dim)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "5\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["net", "timm", "head"])
def test_two_objects_are_two_recipes_and_only_the_object_trains_again(own: Any, kind: str) -> None:
    make = {"net": own.Net, "timm": lambda: timm.create_model("resnet10t"), "head": lambda: own.Head(32, 5)}[kind]
    part, others = ("head", {"backbone": own.Net}) if kind == "head" else ("backbone", {})
    objects = [make(), make()]
    runs = [
        train(name, STILL, **{part: given}, **others) for name, given in zip("abc", [*objects, objects[0]], strict=True)
    ]
    recipes = [json.loads((run.folder / "recipe.json").read_text())["recipe"] for run in runs]
    plain = [{key: value for key, value in recipe.items() if key != "name"} for recipe in recipes]
    assert plain[0] == plain[2] != plain[1]
    with torch.no_grad():
        next(iter(objects[0].parameters())).mul_(2)
    with raises(UsageError, "already-exists"):
        train("a", STILL, **{part: objects[0]}, **others)
    with raises(UsageError, "not-available", part):
        zoo.reproduce(runs[0])
    assert "given_weights" not in (runs[0].folder / "card.json").read_text()


@pytest.mark.slow
def test_classes_places_and_names_of_timm(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"{key}={value}" for key, value in {**SHORT, "backbone.args.width": 5}.items()]
    words = [word for setting in [*settings, "backbone=ownnets:Net"] for word in ("--set", setting)]
    assert main(["train", "margin-conv4-glyphs", *words, "--as", "placed", "--no-eval"]) == 0
    card = json.loads((paths.local_models() / "placed/card.json").read_text())
    assert card["architecture_args"]["trunk_args"] == {"width": 5}
    assert [head["dim"] for head in card["heads"]] == [64]
    capsys.readouterr()
    train("headed", backbone="mobilenetv3_small_050", head=own.Head)
    assert zoo.load("headed").embed(list(PIXELS)).shape == (3, 64)
    assert zoo.info("headed").backbone == "mobilenetv3_small_050-custom-Head"


def of_layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3, 4, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layers", "around", "timm", "timm-inside", "classifier"])
def test_modules_of_libraries_start_with_their_weights_and_load_again(own: Any, kind: str) -> None:
    networks = {
        "layers": of_layers,
        "around": lambda: own.Around(of_layers()),
        "timm": lambda: timm.create_model("resnet10t", num_classes=0),
        "timm-inside": lambda: own.Around(timm.create_model("resnet10t", num_classes=0)),
        "classifier": lambda: timm.create_model("resnet10t"),
    }
    net = networks[kind]().eval()
    trained = train("mine", {**STILL, "schedule.epochs": 0, "heads": []}, backbone=net)
    of_timm = kind in ("timm", "classifier")
    mean, std = (
        np.array(net.pretrained_cfg[key]) if of_timm else value for key, value in (("mean", 0.5), ("std", 0.25))
    )
    inputs = torch.from_numpy((PIXELS / 255 - mean) / std).permute(0, 3, 1, 2).float()
    features = net.forward_head(net.forward_features(inputs), pre_logits=True) if of_timm else net(inputs)
    expected = torch.nn.functional.normalize(features, dim=1).detach().numpy()
    np.testing.assert_allclose(zoo.load(trained, runtime="torch").embed(list(PIXELS)), expected, atol=1e-5)
    assert zoo.info("mine").backbone.startswith("custom-") != of_timm


@pytest.mark.slow
def test_functions_that_build_a_network(own: Any) -> None:
    train("mine", backbone=own.make)
    assert zoo.info("mine").backbone == "custom-make"
    assert zoo.load("mine").embed(list(PIXELS)).shape == (3, 64)


@pytest.mark.slow
def test_a_folder_from_elsewhere_runs_no_code_of_its_author(own: Any, tmp_path: Path) -> None:
    trained = train("mine", backbone=own.Net)
    vectors = zoo.load(trained).embed(list(PIXELS))
    zoo.export("mine")
    other = shutil.copytree(trained.folder, tmp_path / "elsewhere")
    with raises(ModelFolderError, "unsafe-file"):
        zoo.load(other, runtime="torch").embed(list(PIXELS))
    with raises(ModelFolderError, "unsafe-file"):
        train("from-there", {**SHORT, "backbone.pretrained": str(other)})
    np.testing.assert_allclose(zoo.load(other, runtime="onnx").embed(list(PIXELS)), vectors, atol=1e-4)


@pytest.mark.slow
def test_networks_that_could_not_be_loaded_again_are_refused(own: Any) -> None:
    with raises(UsageError, "invalid-value"):
        train("unkept", backbone=own.Unkept(channels=9))
    for net in (own.Flat, nn.Sequential(nn.Flatten(), nn.Linear(8, 8))):
        with pytest.raises((RecipeError, UsageError)):
            train("flat", backbone=net)
    for part in (own.make(), lambda: own.make(), 3, {}, own.Around(own.make())):
        with raises(UsageError, "invalid-value"):
            train("unkept", backbone=part)
    for loss in (3, torch.nn.functional.cross_entropy):
        with raises(UsageError, "invalid-value"):
            train("number", loss=loss)
    for net in (nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())):
        with raises(RecipeError, "unsupported-model"):
            train("unpooled", backbone=net)
    with raises(RecipeError, "unsupported-model"):
        train("size", backbone="vit_tiny_patch16_224")
    with raises(RecipeError, "conflicting-settings"):
        zoo.train("diva-conv4-glyphs", head=own.Head)
    with raises(RecipeError, "unknown-name"):
        train("missing", head="ownnets:Missing")
    with raises(RecipeError, "conflicting-settings"):
        train("pretrained", {**SHORT, "backbone.pretrained": True}, backbone=own.Net)


class ScaledLoss(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        return self.scale * (embeddings @ embeddings.T)[labels[:, None] != labels].mean()


@pytest.mark.slow
def test_the_weights_of_a_given_loss_are_recorded_by_their_hash(own: Any) -> None:
    digests = []
    for name, start in (("first", 1.0), ("again", 1.0), ("other", 2.0), ("none", None)):
        loss = ScaledLoss()
        if start is not None:
            loss.bias = nn.Parameter(torch.full((3,), start))
        folder = train(name, loss=loss).folder
        digests.append(json.loads((folder / "recipe.json").read_text()).get("given_weights"))
    assert digests[0] == digests[1]
    assert len({*digests}) == 3
    assert digests[3] is None


@pytest.mark.slow
def test_several_seeds_take_objects_too(own: Any) -> None:
    from training.named import train_seeds

    parts = {"loss": ScaledLoss(0.5), "backbone": own.Net(4), "settings": SHORT, "evaluate": False, "name": "seeded"}
    assert train_seeds("margin-conv4-glyphs", 2, **parts) == ["seeded", "seeded-seed1"]
    recipes = [
        json.loads((paths.local_models() / name / "recipe.json").read_text()) for name in ("seeded", "seeded-seed1")
    ]
    assert [recipe["recipe"]["seed"] for recipe in recipes] == [0, 1]
    assert {recipe["recipe"]["objective"]["loss_args"]["scale"] for recipe in recipes} == {0.5}
    before = (paths.local_models() / "seeded/card.json").stat().st_mtime_ns
    train_seeds("margin-conv4-glyphs", 2, **parts)
    assert (paths.local_models() / "seeded/card.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_training_goes_on_from_a_network_of_the_user(own: Any) -> None:
    train("mine", STILL, backbone=own.Net(width=6), head=own.Head(24, 5))
    again = train("again", {**STILL, "backbone.pretrained": "mine", "heads": []})
    np.testing.assert_allclose(zoo.load(again).embed(list(PIXELS)), zoo.load("mine").embed(list(PIXELS)), atol=1e-5)
