"""The memory of embeddings for samplers that choose batches by them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from training import checkpoint
from training.data import TrainingData
from training.execution import Execution
from training.health.held_out import embed_pixels
from training.recipe import Augmentation, Batch, Data, Recipe, Schedule
from training.recipes import RECIPES
from training.trainer import CHECKPOINT, Trainer, embed_features, fit, training_features

CPU = Execution(torch.device("cpu"))


def recipe() -> Recipe:
    return dataclasses.replace(
        RECIPES["margin-conv4-glyphs"](),
        data=Data("glyphs", side=32, validation=0),
        augmentation=Augmentation(rotate=5, oversample=1),
        batch=Batch(8, "ddm", 2, {"pool": 20, "candidates": 3}),
        schedule=Schedule(1, 4),
        precision="fp32",
    )


def noise(n: int = 120) -> TrainingData:
    squares = torch.randint(0, 256, (n, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return TrainingData(squares, np.arange(n) % 30, 30, 1, None, [])


def test_the_memory_starts_with_the_embedding_of_each_sample() -> None:
    data = noise()
    run = Trainer(recipe(), data, CPU)
    rows = embed_features(run.network, training_features(run))
    assert run.network.training
    expected = embed_pixels(run.network, recipe().preprocessing, data.squares.numpy(), CPU.device)
    np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_the_embeddings_of_each_batch_replace_those_before(tmp_path: Path) -> None:
    data = noise()
    fit(recipe(), data, tmp_path, CPU, progress=False)
    saved = checkpoint.load(tmp_path / CHECKPOINT)["memory"].numpy()
    torch.manual_seed(recipe().seed)
    run = Trainer(recipe(), data, CPU)
    first = embed_features(run.network, training_features(run))
    changed = np.flatnonzero(np.abs(saved - first).max(1) > 1e-4)
    assert 8 <= len(changed) <= 4 * 8
    np.testing.assert_allclose(np.linalg.norm(saved, axis=1), 1, atol=1e-5)
