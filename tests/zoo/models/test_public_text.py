"""`zoo baseline NAME --joint`: images and texts of CLIP and SigLIP 2 in one space, equal to transformers' vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tests.zoo import joint_hub
from tests.zoo.hub_state import Fault
from zoo.cli.main import main, run
from zoo.errors import ExportError, HubError
from zoo.models.card import read_card
from zoo.models.verify import verify

pytestmark = pytest.mark.slow

TEXTS = ["a photo of a red chair", "A RED Chair!", "dog", "two dogs, 3 cats", "zébra 象", "red chair " * 60]


@pytest.mark.parametrize("published", [joint_hub.clip, joint_hub.siglip], ids=["clip", "siglip"])
def test_one_command_gives_the_vectors_of_transformers(
    published, tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = published()
    with joint_hub.joint_hub(tmp_path / "hub", monkeypatch, expected):
        assert main(["baseline", expected.name, "--joint"]) == 0
    folder = own_zoo / "models" / f"{expected.name}-joint"
    assert {check.name: check.ok for check in verify(folder)}["golden text"] is True
    model = zoo.load(folder)
    rows = model.embed_text(TEXTS)
    assert (rows * expected.texts(TEXTS)).sum(1).min() > 0.99999
    pixels = np.random.default_rng(0).integers(0, 256, (5, joint_hub.SIDE, joint_hub.SIDE, 3), dtype=np.uint8)
    assert (model.embed(list(pixels)) * expected.images(pixels)).sum(1).min() > 0.99999
    origin = json.loads((folder / "recipe.json").read_text())["text"]
    assert origin["repository"] == zoo.models.baselines.baselines()[expected.name].text.repository
    assert read_card(folder).text.lowercase == (expected.name == "siglip2-b16")


def test_nothing_is_written_if_the_tower_cannot_be_fetched_or_does_not_fit(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, siglip = joint_hub.clip(), joint_hub.siglip()
    with joint_hub.joint_hub(tmp_path / "hub", monkeypatch, clip) as hub:
        hub.fail(Fault("text_model.onnx", times=9, flip=True))
        with raises(HubError, "hash-mismatch"):
            run(["baseline", "clip-b32", "--joint"])
        hub.faults.clear()
        repository = hub.repositories["Xenova/clip-vit-base-patch32"]
        graph = "onnx/text_model.onnx"
        repository.commit("main", {**clip.text_files, graph: siglip.text_files[graph]})  # of another length
        with raises(ExportError, "unsupported-graph"):
            run(["baseline", "clip-b32", "--joint"])
        assert not (own_zoo / "models").exists() or not list((own_zoo / "models").iterdir())
        repository.commit("main", clip.text_files)
        assert zoo.load(zoo.baseline("clip-b32", joint=True)).embed_text("red").shape == (1, joint_hub.PROJECTION)
