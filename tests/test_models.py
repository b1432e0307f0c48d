"""The toy model of other tests gives different images different embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import zoo
from tests.models import make_model


def test_the_toy_is_alive(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    draw = np.random.default_rng(9)
    noise = [draw.integers(0, 256, (30, 34, 3), np.uint8) for _ in range(6)]
    plain = [np.full((30, 30, 3), value, np.uint8) for value in (0, 128, 255)]
    for images in (noise, plain):
        rows = zoo.load(tmp_path / "model").embed(images)
        cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
        assert cosines.max() < 0.995
        assert cosines.min() < 0.9
