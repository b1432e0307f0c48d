"""timm itself loads the trunk of a model folder, from disk and from the Hub, with equal features."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.data import resolve_data_config
from torch import Tensor

import zoo
from tests.children import run_python
from tests.models import CARD
from tests.zoo.hub_client import connected
from zoo.data.preprocessing import Preprocessing
from zoo.files import sha256_of
from zoo.models.card import Card, read_card
from zoo.models.golden import draw_images, read_golden, write_golden
from zoo.models.network import Network, create_heads, create_trunk, feature_count, load_network, save_network
from zoo.models.torch_runtime import open_model

ARGS: dict[str, dict[str, Any]] = {
    "conv4": {"widths": [4, 8, 8, 16]},
    "resnet10t": {"channels": [8, 8, 16, 16], "stem_width": 4},
    "bn_inception": {},
}


def make_folder(folder: Path, name: str) -> Path:
    """Write a model folder with timm's initial weights, whose features differ between images."""
    torch.manual_seed(0)
    preprocessing = Preprocessing(40, 32, interpolation="bicubic", mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
    card = dataclasses.replace(
        CARD, name=f"toy-{name}", architecture=name, architecture_args=ARGS[name], preprocessing=preprocessing
    )
    trunk = create_trunk(name, 3, ARGS[name])
    network = Network(trunk, create_heads(card.heads, feature_count(trunk)))
    folder.mkdir()
    files = save_network(network.eval(), card, folder)
    card = dataclasses.replace(card, files={file: sha256_of(folder / file) for file in files})
    card.write(folder)
    write_golden(folder, card, draw_images(2), open_model(folder, card, device="cpu")[0])
    return folder


@pytest.fixture(scope="module", params=ARGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "toy", request.param)


def images(card: Card) -> Tensor:
    crop = card.preprocessing.crop
    return torch.randn(4, 3, crop, crop, generator=torch.Generator().manual_seed(0))


def features_of(model: Any, card: Card) -> np.ndarray:
    with torch.inference_mode():
        out: np.ndarray = model.eval()(images(card)).numpy()
        return out


def test_timm_loads_the_trunk_from_a_folder(folder: Path) -> None:
    card = read_card(folder)
    ours = features_of(load_network(card, folder).trunk, card)
    assert np.ptp(ours, axis=0).max() > 0
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    np.testing.assert_array_equal(features_of(theirs, card), ours)
    # Without pretrained=True timm says nothing and gives random weights: the README's line has it for that reason.
    assert not np.array_equal(features_of(timm.create_model(f"local-dir:{folder}", num_classes=0), card), ours)


def test_timms_own_transform_is_the_cards(folder: Path) -> None:
    preprocessing, theirs = read_card(folder).preprocessing, timm.create_model(f"local-dir:{folder}", pretrained=True)
    images = resolve_data_config({}, model=theirs)
    assert (tuple(images["mean"]), tuple(images["std"]), images["interpolation"]) == (
        preprocessing.mean,
        preprocessing.std,
        "bicubic",
    )
    assert images["input_size"] == (3, preprocessing.crop, preprocessing.crop)
    assert round(images["input_size"][1] / images["crop_pct"]) == preprocessing.resize


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_timm_loads_a_pushed_model_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "toy", "resnet10t")
    with connected(monkeypatch, tmp_path / "cache") as (hub, _):
        monkeypatch.setenv("HF_TOKEN", hub.token)
        zoo.push(folder, "org/toy")
        card = read_card(folder)
        theirs = timm.create_model("hf-hub:org/toy", pretrained=True, num_classes=0)
        np.testing.assert_array_equal(features_of(theirs, card), features_of(load_network(card, folder).trunk, card))
        images, golden = read_golden(folder)
        np.testing.assert_allclose(zoo.load("org/toy", device="cpu").embed(images), golden, atol=1e-5)


@pytest.mark.slow
def test_import_zoo_registers_the_backbones_also_after_a_lookup_of_timm() -> None:
    """`import zoo` alone loads no torch (tests/test_architecture.py)."""
    code = """
import importlib.util, sys, zoo
for _ in range(2):  # a lookup must not use the registration up
    assert importlib.util.find_spec("timm").name == "timm"
assert "torch" not in sys.modules and "timm" not in sys.modules
import timm
left = [type(finder).__name__ for finder in sys.meta_path].count("_AfterTimm")
print(*map(timm.is_model, ("conv4", "bn_inception", "googlenet")), left)
"""
    assert run_python(code).split() == ["True", "True", "True", "0"]
