"""Pretrained weights: from the Hub, a folder or a file, and every error about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from tests.models import CARD, make_model
from tests.raising import raises
from tests.zoo.hub_server import COMMIT, serving
from zoo.errors import HubError, RecipeError
from zoo.models.backbones import register
from zoo.models.network import build_trunk, create_trunk, feature_count
from zoo.models.pretrained.weights import Weights

register()

SMALL = {"channels": (4, 4, 4, 4)}
CONFIG = json.dumps(
    {
        "architecture": "resnet18",
        "num_classes": 1000,
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "crop_pct": 0.5},
    }
).encode()


def classifier_net() -> nn.Module:
    """A ResNet-18 with few channels and its classifier, as timm publishes such models."""
    torch.manual_seed(1)
    return timm.create_model("resnet18", **SMALL)


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return classifier_net().state_dict()


def same(trunk: nn.Module, state: dict[str, Tensor]) -> bool:
    own = trunk.state_dict()
    assert own.keys() == {name for name in state if not name.startswith("fc.")}
    return all(torch.equal(tensor, state[name]) for name, tensor in own.items())


@pytest.fixture
def hub(state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requested paths of a Hub with timm's resnet18.tv_in1k and other repositories."""
    files = {
        "timm/resnet18.tv_in1k/model.safetensors": save(state),
        "org/whole/model.safetensors": save(state),
        "org/whole/config.json": CONFIG,
        "org/pickled/config.json": CONFIG,
        "org/pickled/pytorch_model.bin": b"never read",
        "org/transformers/config.json": b'{"model_type": "resnet"}',
        "timm/resnet34.tv_in1k/pytorch_model.bin": b"never read",
    }
    with serving(files) as (url, paths):
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield paths


def weight_requests(hub: list[str]) -> list[str]:
    """Requests without the further ones of huggingface_hub."""
    return [path for path in hub if "/resolve/" in path]


def test_timms_own_weights_come_from_the_hub_once(
    hub: list[str], state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = create_trunk("resnet18.tv_in1k", 3, SMALL, pretrained=True)
    assert same(trunk, state)
    assert "state_dict" not in trunk.pretrained_cfg
    assert set(weight_requests(hub)) == {"/timm/resnet18.tv_in1k/resolve/main/model.safetensors"}
    requests = len(hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert same(create_trunk("resnet18.tv_in1k", 3, SMALL, pretrained=True), state)
    assert len(hub) == requests


@pytest.mark.parametrize("name", ["org/whole", "hf-hub:org/whole", f"org/whole@{COMMIT}"])
@pytest.mark.usefixtures("hub")
def test_a_repository_of_the_hub(name: str, state: dict[str, Tensor]) -> None:
    trunk = create_trunk("resnet18", 3, SMALL, pretrained=name)
    assert same(trunk, state)
    assert tuple(trunk.pretrained_cfg["mean"]) == (0.1, 0.2, 0.3)
    assert trunk.pretrained_cfg["crop_pct"] == 0.5


@pytest.mark.parametrize(
    ("architecture", "name", "code", "values"),
    [
        ("resnet18", "org/none", "download-failed", ["org/none"]),
        ("resnet18", "org/whole@v2", "download-failed", ["'v2'"]),
        ("resnet18", "org/pickled", "not-found", ["model.safetensors"]),
        ("resnet34.tv_in1k", True, "not-found", ["timm/resnet34.tv_in1k", "model.safetensors"]),
        ("resnet34.a1_in1k", True, "download-failed", ["timm/resnet34.a1_in1k"]),
    ],
)
def test_weights_that_the_hub_does_not_have(
    hub: list[str], architecture: str, name: bool | str, code: str, values: list[str]
) -> None:
    with raises(HubError, code) as caught:
        create_trunk(architecture, 3, pretrained=name)
    assert all(value in str(caught.value) for value in values)
    assert not any(path.endswith(".bin") for path in hub)


@pytest.mark.usefixtures("hub")
def test_a_repository_of_another_library_or_architecture() -> None:
    with raises(RecipeError, "damaged-file"):
        create_trunk("resnet18", 3, pretrained="org/transformers")
    with raises(RecipeError, "weights-mismatch"):
        create_trunk("resnet50", 3, pretrained="org/whole")


def test_without_network_or_cache_the_error_names_the_alternatives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(HubError, "download-failed") as error:
        create_trunk("resnet50.tv_in1k", 3, pretrained=True)
    for value in ("timm/resnet50.tv_in1k", str(tmp_path), "HF_HUB_OFFLINE", "lite0", ".pth"):
        assert value in str(error.value)


def test_a_folder_and_a_file(state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(state, tmp_path / "model.safetensors")
    assert same(create_trunk("resnet18", 3, SMALL, pretrained=str(tmp_path)), state)
    assert same(create_trunk("resnet18", 3, SMALL, pretrained=str(tmp_path / "model.safetensors")), state)
    (tmp_path / "config.json").write_bytes(CONFIG)
    assert create_trunk("resnet18", 3, SMALL, pretrained=str(tmp_path)).pretrained_cfg["crop_pct"] == 0.5
    monkeypatch.chdir(tmp_path.parent)  # a folder comes before a repository of that name
    assert same(create_trunk("resnet18", 3, SMALL, pretrained=f"./{tmp_path.name}"), state)


def test_a_model_folder_of_the_zoo(tmp_path: Path) -> None:
    make_model(tmp_path / CARD.name)
    trunk = create_trunk("conv4", 3, CARD.architecture_args, pretrained=str(tmp_path / CARD.name))
    assert same(trunk, load_file(tmp_path / CARD.name / "model.safetensors"))
    grey = create_trunk("conv4", 1, CARD.architecture_args, pretrained=str(tmp_path / CARD.name))
    torch.testing.assert_close(grey.blocks[0][0].weight, trunk.blocks[0][0].weight.sum(1, keepdim=True))


def test_a_models_name(own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(own_zoo / "models" / "toy")
    weights = load_file(own_zoo / "models" / "toy" / "model.safetensors")
    assert same(create_trunk("conv4", 3, CARD.architecture_args, pretrained="toy"), weights)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()  # a folder without weights, such as one of images
    assert same(create_trunk("conv4", 3, CARD.architecture_args, pretrained="toy"), weights)
    make_model(tmp_path / "other" / "toy", seed=1)
    monkeypatch.chdir(tmp_path / "other")  # a path of that name comes first
    others = load_file(tmp_path / "other" / "toy" / "model.safetensors")
    assert same(create_trunk("conv4", 3, CARD.architecture_args, pretrained="toy"), others)


def test_one_channel_sees_the_sum_over_the_three(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(state, tmp_path / "model.safetensors")
    for name in (tmp_path, tmp_path / "model.safetensors"):
        trunk = create_trunk("resnet18", 1, SMALL, pretrained=str(name))
        torch.testing.assert_close(trunk.conv1.weight, state["conv1.weight"].sum(1, keepdim=True))


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_must_fit_in_every_entry(state: dict[str, Tensor], tmp_path: Path, change: str) -> None:
    changed = dict(state)
    if change == "missing":
        del changed["layer1.0.bn1.weight"]
    elif change == "unknown":
        changed["layer9.weight"] = torch.zeros(1)
    else:
        changed["layer1.0.bn1.weight"] = torch.zeros(5)
    save_file(changed, tmp_path / "model.safetensors")
    with raises(RecipeError, "weights-mismatch") as caught:
        create_trunk("resnet18", 3, SMALL, pretrained=str(tmp_path))
    assert ("layer9.weight" if change == "unknown" else "layer1.0.bn1.weight") in str(caught.value)


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("", "invalid-value", "''"),
        ("nowhere", "weights-not-found", "'nowhere'"),
        ("weights/net.pth", "weights-not-found", "'weights/net.pth'"),
        ("x" * 300, "weights-not-found", "x" * 300),
        ("-a/b", "invalid-value", "'-a/b'"),
        ("DIR", "weights-not-found", "zoo convert FILE"),
        ("DIR/net.pth", "weights-mismatch", "0 of 100"),
        ("DIR/net.onnx", "weights-not-found", "net.onnx"),
        ("DIR/net.txt", "weights-not-found", "net.txt"),
        ("DIR/net.safetensors", "unreadable-file", "net.safetensors"),
    ],
)
def test_other_values_of_pretrained_are_refused(tmp_path: Path, name: str, code: str, value: str) -> None:
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "net.pth")
    (tmp_path / "net.safetensors").write_bytes(b"no header")
    for name_of_file in ("net.onnx", "net.txt"):
        (tmp_path / name_of_file).write_bytes(b"")
    with raises(RecipeError, code) as caught:
        create_trunk("resnet18", 3, pretrained=name.replace("DIR", str(tmp_path)))
    assert value in str(caught.value)


def test_a_damaged_config_is_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(state, tmp_path / "model.safetensors")
    for text in ("{", "[]", '{"architecture": "resnet18", "pretrained_cfg": 3}'):
        (tmp_path / "config.json").write_text(text)
        with raises(RecipeError, "damaged-file"):
            create_trunk("resnet18", 3, SMALL, pretrained=str(tmp_path))


@pytest.mark.parametrize(
    ("architecture", "code", "value"),
    [
        ("bn_inception", "weights-not-found", "zoo convert bn_inception-52deb4733.pth --architecture bn_inception"),
        ("googlenet", "weights-not-found", "zoo convert googlenet-1378be20.pth --architecture googlenet"),
        ("conv4", "weights-not-found", "backbone.pretrained=false"),
        ("resnet50.tv_in", "unknown-name", "'resnet50.tv_in1k'"),
        ("resnet51", "unknown-name", "'resnet51'"),
    ],
)
def test_architectures_without_weights_on_the_hub(architecture: str, code: str, value: str) -> None:
    with raises(RecipeError, code) as caught:
        create_trunk(architecture, 3, pretrained=True)
    assert value in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "features"),
    [
        ("resnet50.tv_in1k", 2048),
        ("densenet121.tv_in1k", 1024),
        ("densenet161.tv_in1k", 2208),
        ("densenet169.tv_in1k", 1664),
        ("densenet201.tv_in1k", 1920),
        ("bn_inception", 1024),
        ("googlenet", 1024),
    ],
)
def test_the_papers_backbones(architecture: str, features: int) -> None:
    with torch.device("meta"):
        trunk = create_trunk(architecture, 3)
        assert trunk.num_features == feature_count(trunk) == features
        assert trunk(torch.zeros(2, 3, 64, 64)).shape == (2, features)
    hub = timm.get_pretrained_cfg(architecture).hf_hub_id
    assert hub == (f"timm/{architecture}" if "." in architecture else None)


def test_depthwise_convolutions_do_not_count_as_the_first_one() -> None:
    """A .safetensors file has its tensors by name: those of blocks, with one input channel, before the stem's."""
    rgb = timm.create_model("mobilenetv3_small_050", num_classes=0)
    weights = Weights(dict(sorted(rgb.state_dict().items())), {"input_size": (3, 64, 64)}, "file")
    grey = build_trunk("mobilenetv3_small_050", 1, {}, weights).state_dict()["conv_stem.weight"]
    torch.testing.assert_close(grey, weights.state["conv_stem.weight"].sum(1, keepdim=True))
    assert weights.notes == []
