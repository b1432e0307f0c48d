"""`zoo baseline --joint`: CLIP's own projection, which timm stores as the classifier, as a head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load

import zoo
from tests.raising import raises
from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Hub, Repository
from tests.zoo.timm_hub import VIT, of_timm, timm_hub
from zoo.cli.main import run
from zoo.data.preprocessing import to_pixels
from zoo.errors import UsageError
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


def timm_embeddings(
    architecture: str, weights: bytes, images: list[np.ndarray], preprocessing: zoo.models.card.Preprocessing
) -> np.ndarray:
    """Return the unit rows of timm's model, with the classifier, which is the projection."""
    model = timm.create_model(architecture, num_classes=7, **VIT).eval()
    model.load_state_dict(load(weights))
    pixels = np.stack([to_pixels(image, preprocessing) for image in images]) / 255.0
    planes = torch.from_numpy((pixels - preprocessing.mean) / preprocessing.std).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        rows = model(planes).double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_joint_is_the_complete_tower(hub: Hub, own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a text tower in the table of baselines; `test_public_text` has the towers in it."""
    assert run(["baseline", f"timm/{CLIP}.laion2b", "--as", "mine", "--joint"]) == 0
    assert "zoo text-tower" in capsys.readouterr().err
    folder = own_zoo / "models" / "mine"
    card = read_card(folder)
    assert (card.architecture, card.dim, [head.name for head in card.heads]) == (CLIP, 7, ["projection"])
    weights = hub.repositories[f"timm/{CLIP}.laion2b"].files()["model.safetensors"]
    expected = timm_embeddings(CLIP, weights, draw_images(3), card.preprocessing)
    np.testing.assert_allclose(zoo.load("mine").embed(draw_images(3)), expected, atol=1e-5)
    assert {check.ok for check in verify(folder)} == {True}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        (f"timm/{CLIP}.laion2b_ft_in1k", [], "not-available"),
        ("dinov2-s14", [], "not-available"),
        ("clip-b32", ["--whiten", "."], "conflicting-options"),
    ],
)
def test_joint_is_refused_without_a_projection_or_with_whitening(
    name: str, options: list[str], code: str, tmp_path: Path
) -> None:
    from PIL import Image

    Image.fromarray(draw_images(1)[0]).save(tmp_path / "one.png")
    options = [str(tmp_path) if option == "." else option for option in options]
    with raises(UsageError, code):
        run(["baseline", name, "--as", "mine", "--joint", *options])


def test_a_copy_does_not_keep_the_projection(hub: Hub, own_zoo: Path) -> None:
    assert hub
    run(["baseline", "clip-b32", "--as", "copy"])
    with raises(UsageError, "not-available"):
        run(["baseline", str(own_zoo / "models" / "copy"), "--as", "mine", "--joint"])
