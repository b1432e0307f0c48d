"""A model folder in sentence-transformers: the same vectors, training, and folders written there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo.paths import SHIPPED

sentence_transformers = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.slow  # only `make slow` installs it


def pictures() -> list[Image.Image]:
    generator = np.random.default_rng(0)
    noise = [generator.integers(0, 255, (height, width, 3), dtype=np.uint8) for height, width in ((40, 60), (90, 50))]
    return [Image.fromarray(pixels).resize((160, 120)) for pixels in noise]


def opened(folder: Path) -> sentence_transformers.SentenceTransformer:
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SHIPPED.glob("*/card.json")))
def test_every_shipped_model_gives_the_same_vectors_there(name: str) -> None:
    theirs = opened(SHIPPED / name).encode(pictures())
    ours = zoo.load(SHIPPED / name, runtime="torch").embed(pictures())
    assert (theirs * ours).sum(axis=1).min() > 0.99999


def test_without_trust_the_folder_is_refused_with_the_argument_that_is_missing() -> None:
    with pytest.raises(ValueError, match="trust_remote_code"):
        sentence_transformers.SentenceTransformer(str(SHIPPED / "margin-conv4-glyphs"), device="cpu")


def test_training_continues_there_and_comes_back(tmp_path: Path) -> None:
    model = opened(SHIPPED / "margin-conv4-glyphs")
    before = model.encode(pictures())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features = model.preprocess(pictures())
    loss = model(features)["sentence_embedding"].prod(dim=0).sum()
    loss.backward()
    optimizer.step()
    model.eval()
    after = model.encode(pictures())
    model.save(str(tmp_path / "saved"))
    loaded = zoo.load(tmp_path / "saved", runtime="torch").embed(pictures())
    assert np.abs(after - before).max() > 1e-4
    assert np.allclose(loaded, after, atol=1e-5)


def test_a_folder_whose_weights_were_altered_is_refused_there(tmp_path: Path) -> None:
    opened(SHIPPED / "margin-conv4-glyphs").save(str(tmp_path))
    with (tmp_path / "model.safetensors").open("ab") as file:
        file.write(b"0")
    with pytest.raises(zoo.errors.ModelFolderError) as refusal:
        opened(tmp_path)
    assert refusal.value.code == "hash-mismatch"
