"""Proof that an exported graph gives the torch model's embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from zoo import torch_runtime
from zoo.cards import Card
from zoo.golden import read_golden
from zoo.preprocessing import to_pixels

FLOOR = 0.99999
"""The least cosine between torch's and an fp32 graph's embedding of one image."""

BATCHES = (1, 2, 7, 32)


@dataclass(frozen=True)
class Parity:
    """How near a graph's embeddings are to torch's, over `images` images in batches of several sizes."""

    variant: str
    images: int
    min_cosine: float
    mean_cosine: float
    max_difference: float
    max_norm_error: float
    floor: float
    date: str
    versions: dict[str, str]

    @property
    def holds(self) -> bool:
        return self.min_cosine >= self.floor and self.max_norm_error < 1e-5

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def measure(folder: Path, card: Card, run: Callable[[np.ndarray], np.ndarray], variant: str = "fp32") -> Parity:
    """Compare `run` with the torch model of `folder` on its golden images and on noise, in batches of four sizes."""
    torch_run, _ = torch_runtime.open_model(folder, card, device="cpu")
    pixels = _pixels(folder, card)
    expected = torch_run(pixels).astype(np.float64)
    cosines, differences, norms = [], [], []
    for size in BATCHES:
        got = np.concatenate([run(pixels[i : i + size]) for i in range(0, len(pixels), size)]).astype(np.float64)
        norm = np.linalg.norm(got, axis=1)
        cosines.append((got * expected).sum(1) / (norm * np.linalg.norm(expected, axis=1)))
        differences.append(np.abs(got - expected).max())
        norms.append(np.abs(norm - 1).max())
    return Parity(
        variant=variant,
        images=len(pixels),
        min_cosine=float(np.min(cosines)),
        mean_cosine=float(np.mean(cosines)),
        max_difference=float(np.max(differences)),
        max_norm_error=float(np.max(norms)),
        floor=FLOOR,
        date=datetime.now(UTC).date().isoformat(),
        versions={name: version(name) for name in ("torch", "onnx", "onnxruntime")},
    )


def _pixels(folder: Path, card: Card) -> np.ndarray:
    """The golden images and 60 of noise: from flat to full contrast, so that no range of values goes unseen."""
    images, _ = read_golden(folder)
    golden = np.stack([to_pixels(image, card.preprocessing) for image in images])
    draw = np.random.default_rng(0)
    contrast = np.linspace(0.05, 1, 60).reshape(-1, 1, 1, 1)
    noise = 127.5 + 127.5 * contrast * draw.uniform(-1, 1, (60, *card.preprocessing.shape))
    return np.concatenate([golden, noise.astype(np.uint8)])
