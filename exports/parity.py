"""Proof that an exported graph gives the torch model's embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from zoo.models.results import EXPORT_FLOORS

Run = Callable[[np.ndarray], np.ndarray]

BATCHES = (1, 2, 7, 32)
NORM_ERROR = 1e-5


@dataclass(frozen=True)
class Parity:
    """How near a graph's embeddings are to torch's, over `images` images in batches of several sizes.

    centred_cosine: the mean cosine after torch's mean embedding is taken from both, which shows differences between
    images even where all embeddings lie close together. details: what was kept in float and how int8 was calibrated.
    cost: what the precision costs in retrieval, where it was measured. forced: it is there though under its floor.
    """

    variant: str
    images: int
    min_cosine: float
    mean_cosine: float
    centred_cosine: float
    max_difference: float
    max_norm_error: float
    floor: float
    date: str
    versions: dict[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] | None = None
    forced: bool = False

    @property
    def holds(self) -> bool:
        return self.min_cosine >= self.floor and self.max_norm_error < NORM_ERROR

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def measure(expected: np.ndarray, run: Run, pixels: np.ndarray, variant: str) -> Parity:
    """Compare `run` with torch's embeddings `expected` [n, dim] of the pixels, in batches of four sizes."""
    torch = expected.astype(np.float64)
    gots = [_in_batches(run, pixels, size) for size in BATCHES]
    cosines = np.stack([_cosines(got, torch) for got in gots])
    return Parity(
        variant=variant,
        images=len(pixels),
        # NaN is below every floor.
        min_cosine=float(np.nan_to_num(cosines, nan=-1.0).min()),
        mean_cosine=float(np.nan_to_num(cosines, nan=-1.0).mean()),
        centred_cosine=float(np.nan_to_num(_cosines(gots[-1] - torch.mean(0), torch - torch.mean(0)), nan=-1.0).mean()),
        max_difference=float(np.nan_to_num(np.abs(np.stack(gots) - torch), nan=2.0).max()),
        max_norm_error=float(np.nan_to_num(np.abs(np.linalg.norm(np.stack(gots), axis=2) - 1), nan=1.0).max()),
        floor=EXPORT_FLOORS[variant],
        date=datetime.now(UTC).date().isoformat(),
        versions={name: version(name) for name in ("torch", "onnx", "onnxruntime")},
    )


def _in_batches(run: Run, pixels: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([run(pixels[i : i + size]) for i in range(0, len(pixels), size)]).astype(np.float64)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows; NaN where one is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        result: np.ndarray = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result
