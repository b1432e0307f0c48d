"""`zoo convert`: published PyTorch files to folders that training and timm read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from torch import Tensor

import zoo
import zoo.models.pretrained.weights
from tests.raising import raises
from zoo.cli.main import main
from zoo.errors import RecipeError, UsageError, ZooError
from zoo.models.backbones import register
from zoo.models.backbones.bn_inception import BNInception
from zoo.models.network import create_trunk
from zoo.models.pretrained.convert import convert
from zoo.models.pretrained.weights import PUBLIC_WEIGHTS

register()


def publish(path: Path, state: object, legacy: bool = False) -> str:
    """Write a PyTorch file; return its SHA-256."""
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def caffe_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    state = BNInception(num_classes=3).state_dict()
    return {
        name: tensor[None] if "_bn." in name else tensor
        for name, tensor in state.items()
        if not name.endswith("num_batches_tracked")
    }


@pytest.mark.slow
def test_bn_inception_from_the_public_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, file, out = caffe_state(), tmp_path / "bn_inception.pth", tmp_path / "bn_inception"
    out.mkdir()
    sha256 = publish(file, state, legacy=True)
    public = dataclasses.replace(PUBLIC_WEIGHTS["bn_inception"], sha256=sha256[:9])
    monkeypatch.setitem(zoo.models.pretrained.weights.PUBLIC_WEIGHTS, "bn_inception", public)
    assert main(["convert", str(file), "--architecture", "bn_inception", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["folder"], printed["architecture"]) == (str(out), "bn_inception")
    assert json.loads((out / "recipe.json").read_text())["baseline"] == {"file": "bn_inception.pth", "weights": sha256}
    for trunk in (
        create_trunk("bn_inception", 3, pretrained=str(out)),
        timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=0),
    ):
        assert torch.equal(trunk.conv1_7x7_s2.weight, state["conv1_7x7_s2.weight"][:, [2, 1, 0]])
        assert torch.equal(trunk.inception_5b_3x3.weight, state["inception_5b_3x3.weight"])
        assert torch.equal(trunk.inception_5b_3x3_bn.running_var, state["inception_5b_3x3_bn.running_var"][0])
        assert [255 * x for x in trunk.pretrained_cfg["mean"]] == pytest.approx([128, 117, 104])
        assert [255 * x for x in trunk.pretrained_cfg["std"]] == pytest.approx([1, 1, 1])


@pytest.mark.slow
def test_googlenet_gives_torchvisions_features(tmp_path: Path) -> None:
    torch.manual_seed(0)
    peer = torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=True, num_classes=3).eval()
    for module in peer.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.bias.data.uniform_(0, 1)  # otherwise the activations vanish in the deep layers
    sha256 = publish(tmp_path / "net.pth", peer.state_dict())
    out = tmp_path / "new" / "out"
    convert(tmp_path / "net.pth", out, architecture="googlenet", sha256=sha256.upper())
    trunk = create_trunk("googlenet", 3, pretrained=str(out)).eval()
    peer.fc = torch.nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(trunk(x), peer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_any_timm_architecture_with_its_own_key_map(tmp_path: Path) -> None:
    """torchvision's old DenseNet files name their layers norm.1 and conv.1, which timm converts."""
    torch.manual_seed(0)
    state = timm.create_model("densenet121").state_dict()
    new = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    old = {name.replace("norm1.", "norm.1.").replace("conv1.", "conv.1."): tensor for name, tensor in new.items()}
    assert old.keys() != new.keys()
    publish(tmp_path / "net.pth", {"state_dict": old})
    out = tmp_path / "out"
    convert(tmp_path / "net.pth", out, architecture="densenet121")
    trunk = create_trunk("densenet121", 3, pretrained=str(out))
    assert all(torch.equal(tensor, state[name]) for name, tensor in trunk.state_dict().items())
    config = json.loads((out / "config.json").read_text())
    assert config["architecture"] == "densenet121"
    assert config["num_features"] == 1024


class Bomb:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [True, False])
def test_only_tensors_are_unpickled(tmp_path: Path, legacy: bool) -> None:
    file, mark = tmp_path / "net.pth", tmp_path / "mark"
    sha256 = publish(file, {"conv1.weight": Bomb(mark)}, legacy)
    with raises(UsageError, "unsafe-file"):
        convert(file, tmp_path / "out", architecture="resnet18", sha256=sha256)
    assert not mark.exists()
    file.write_bytes(pickle.dumps({"conv1.weight": Bomb(mark)}))
    with raises(UsageError, "unsafe-file"):
        convert(file, tmp_path / "out", architecture="resnet18", sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    assert not mark.exists()


def test_a_pickled_network_is_refused_by_its_class_and_without_torch_s_advice(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "net.pth")
    with raises(UsageError, "unsafe-file", "torch.nn.modules.linear.Linear") as caught:
        convert(tmp_path / "net.pth", tmp_path / "out", architecture="resnet18")
    assert "\x1b" not in str(caught.value)
    (tmp_path / "net.pth").write_bytes(b"no pickle")
    with raises(UsageError, "unsafe-file", "cannot be read"):
        convert(tmp_path / "net.pth", tmp_path / "out", architecture="resnet18")


def test_another_file_than_the_public_one_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "bn_inception-52deb4733.pth", tmp_path / "out"
    sha256 = publish(file, caffe_state())
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("opened"))
    with raises(UsageError, "hash-mismatch") as caught:
        convert(file, out, architecture="bn_inception")
    assert all(value in str(caught.value) for value in (sha256, "52deb4733", "--sha256"))
    with raises(UsageError, "hash-mismatch") as caught:
        convert(file, out, architecture="bn_inception", sha256="0" * 64)
    assert all(value in str(caught.value) for value in (sha256, "0" * 64))
    with raises(UsageError, "invalid-value"):
        convert(file, out, architecture="bn_inception", sha256="52deb4733")
    assert not out.exists()


@pytest.mark.parametrize(
    ("state", "error", "code"),
    [
        ({"conv1.weight": torch.zeros(64, 3, 7, 7)}, RecipeError, "weights-mismatch"),
        ({"state_dict": {"fc.weight": 3}}, UsageError, "weights-mismatch"),
        (torch.zeros(3), UsageError, "weights-mismatch"),
        ([torch.zeros(3)], UsageError, "weights-mismatch"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, state: object, error: type[ZooError], code: str) -> None:
    sha256 = publish(tmp_path / "net.pth", state)
    with raises(error, code):
        convert(tmp_path / "net.pth", tmp_path / "out", architecture="resnet18", sha256=sha256)
    assert [path.name for path in tmp_path.iterdir()] == ["net.pth"]


def test_wrong_paths_and_architectures_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "not-found"):
        convert(tmp_path / "none.pth", tmp_path / "out", architecture="googlenet")
    with raises(RecipeError, "weights-not-found"):
        convert(tmp_path, tmp_path / "out", architecture="googlenet")
    (tmp_path / "full" / "of").mkdir(parents=True)
    with raises(UsageError, "already-exists"):
        convert(tmp_path / "none.pth", tmp_path / "full", architecture="googlenet")
    (tmp_path / "empty.pth").touch()
    with raises(RecipeError, "unknown-name") as caught:
        convert(tmp_path / "empty.pth", tmp_path / "out", architecture="google_net")
    assert "'googlenet'" in str(caught.value)


def test_the_public_files_are_named_after_their_hash() -> None:
    for public in PUBLIC_WEIGHTS.values():
        assert public.file.endswith(f"-{public.sha256}.pth")


@pytest.fixture
def embedding_net(tmp_path: Path) -> Path:
    """Write the weights of a small network whose embedding is a linear layer of the pooled features."""
    torch.manual_seed(0)
    trunk = create_trunk("resnet10t", 3).state_dict()
    layer = {"last_linear.weight": torch.randn(8, 512), "last_linear.bias": torch.randn(8)}
    torch.save({**trunk, **layer}, tmp_path / "net.pth")
    return tmp_path / "net.pth"


def test_an_embedding_layer_is_named_and_can_be_kept(embedding_net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, whole = embedding_net.parent / "plain", embedding_net.parent / "whole"
    command = ["convert", str(embedding_net), "--architecture", "resnet10t"]
    assert main([*command, "--out", str(plain)]) == 0
    assert "--head last_linear" in capsys.readouterr().err
    assert main([*command, "--head", "last_linear", "--out", str(whole)]) == 0
    features, model = (zoo.load(folder, "torch", device="cpu") for folder in (plain, whole))
    assert (features.dim, model.dim) == (512, 8)
    state = torch.load(embedding_net, weights_only=True)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        rows = features.module.trunk(images) @ state["last_linear.weight"].T + state["last_linear.bias"]
        expected = rows / rows.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model.module(images), expected, atol=1e-5, rtol=1e-5)
    with raises(UsageError, "unknown-name", "last_linear"):
        convert(embedding_net, embedding_net.parent / "other", architecture="resnet10t", head="lastlinear")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(embedding_net: Path, value: float) -> None:
    state = torch.load(embedding_net, weights_only=True)
    state["layer1.0.conv1.weight"][0, 0, 0, 0] = value
    torch.save(state, embedding_net)
    with raises(UsageError, "invalid-value", "layer1.0.conv1.weight"):
        convert(embedding_net, embedding_net.parent / "out", architecture="resnet10t")
    assert not (embedding_net.parent / "out").exists()
