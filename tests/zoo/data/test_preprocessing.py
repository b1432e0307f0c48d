"""`zoo baseline --joint`: CLIP's own projection, which timm keeps in a classifier's place, as a head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load

import zoo
from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Hub, Repository
from tests.zoo.timm_hub import VIT, of_timm, timm_hub
from zoo.cli.main import main
from zoo.data.preprocessing import to_pixels
from zoo.models.card import read_card
from zoo.models.golden import draw_images
from zoo.models.verify import verify

CLIP = "vit_base_patch32_clip_224"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with timm_hub(tmp_path / "hub", monkeypatch) as server:
        for tag in ("openai", "laion2b", "laion2b_ft_in1k"):
            config, weights = of_timm(CLIP, VIT, tag=tag)
            files = {"config.json": config, "model.safetensors": weights}
            server.repositories[f"timm/{CLIP}.{tag}"] = Repository({"main": COMMIT}, {COMMIT: files})
        yield server


def timms(
    architecture: str, weights: bytes, images: list[np.ndarray], how: zoo.models.card.Preprocessing
) -> np.ndarray:
    """What timm's whole model gives, its classifier's place included, as unit rows."""
    model = timm.create_model(architecture, num_classes=7, **VIT).eval()
    model.load_state_dict(load(weights))
    pixels = np.stack([to_pixels(image, how) for image in images]) / 255.0
    planes = torch.from_numpy((pixels - how.mean) / how.std).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        rows = model(planes).double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("clip-b32", "vit_base_patch32_clip_quickgelu_224"), (f"timm/{CLIP}.laion2b", CLIP)],
)
def test_it_is_the_whole_tower_with_the_activation_it_was_trained_with(
    hub: Hub, own_zoo: Path, name: str, architecture: str
) -> None:
    assert main(["baseline", name, "--as", "mine", "--joint"]) == 0
    folder = own_zoo / "models" / "mine"
    card = read_card(folder)
    assert (card.architecture, card.dim, [head.name for head in card.heads]) == (architecture, 7, ["projection"])
    tag = "openai" if name == "clip-b32" else "laion2b"
    weights = hub.repositories[f"timm/{CLIP}.{tag}"].files()["model.safetensors"]
    expected = timms(architecture, weights, draw_images(3), card.preprocessing)
    np.testing.assert_allclose(zoo.load("mine").embed(draw_images(3)), expected, atol=1e-5)
    assert {check.ok for check in verify(folder)} == {True}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        (f"timm/{CLIP}.laion2b_ft_in1k", [], "no projection into a space of texts"),
        ("dinov2-s14", [], "no projection into a space of texts"),
        ("clip-b32", ["--whiten", "."], "texts know nothing of whitening"),
    ],
)
def test_what_has_none(
    name: str, more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    Image.fromarray(draw_images(1)[0]).save(tmp_path / "one.png")
    more = [str(tmp_path) if word == "." else word for word in more]
    assert main(["baseline", name, "--as", "mine", "--joint", *more]) == 2
    assert says in capsys.readouterr().err


def test_a_copy_has_lost_it(hub: Hub, own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hub
    assert main(["baseline", "clip-b32", "--as", "copy"]) == 0
    assert main(["baseline", str(own_zoo / "models" / "copy"), "--as", "mine", "--joint"]) == 2
    assert "no public backbone as it came from the Hub" in capsys.readouterr().err
