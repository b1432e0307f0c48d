"""Samplers and random rows for the samplers' tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from training.construction import construct
from training.samplers import SAMPLERS
from training.samplers.base import BatchSampler


def sampler(name: str, labels: np.ndarray, size: int, per_class: int, seed: int = 0, **args: Any) -> BatchSampler:
    """Return a sampler as the training loop creates it, its memory filled with random unit rows."""
    offered = {"labels": labels, "batch_size": size, "samples_per_class": per_class, "seed": seed, "embedding_size": 8}
    batch_sampler: Any = construct(SAMPLERS, "sampler", name, args, offered)
    if hasattr(batch_sampler, "memory"):
        batch_sampler.memory[:] = unit_rows(len(labels), 8)
    return batch_sampler


def unit_rows(n: int, dim: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
