"""Short runs on patterns that a small network tells apart: healthy ones, and ones that are broken on purpose."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.toys import CPU, SMALL
from training.data import TrainingData
from training.health.diagnosis import History
from training.health.run_folder import read_history
from training.recipe import Augmentation, Batch, Data, Optimizer, Recipe, Schedule
from training.recipes import RECIPES
from training.recipes.common import ObjectiveSettings
from training.recipes.small import LR
from training.trainer import fit
from zoo.errors import DivergedError
from zoo.models.card import Head

CLASSES, HELD_OUT, IMAGES, SIDE = 40, 10, 15, 16


def patterns(seed: int, shuffled: bool = False) -> TrainingData:
    """Return noisy, shifted views of one smooth random pattern per class; shuffled: with labels of other images."""
    draw = np.random.default_rng(seed)
    coarse = torch.from_numpy(draw.normal(size=(CLASSES, 3, 5, 5)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(SIDE + 4, SIDE + 4), mode="bicubic")
    images = []
    for pattern in 45 * smooth.permute(0, 2, 3, 1).numpy():
        for _ in range(IMAGES):
            y, x = draw.integers(0, 5, 2)
            view = pattern[y : y + SIDE, x : x + SIDE] * draw.uniform(0.7, 1.3)
            images.append(view + 128 + draw.normal(0, 25) + draw.normal(0, 40, view.shape))
    pixels = np.clip(np.array(images), 0, 255).astype(np.uint8)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    if shuffled:
        labels = draw.permutation(labels)
    train = labels < CLASSES - HELD_OUT
    held_out = pixels[~train], labels[~train]
    names = [f"pattern/{i}" for i in np.flatnonzero(train)]
    squares = torch.from_numpy(pixels[train])
    return TrainingData(squares, labels[train], CLASSES - HELD_OUT, 1, held_out, [], sources=names)


def recipe(settings: ObjectiveSettings, seed: int, lr: float = LR, **change: Any) -> Recipe:
    """Return a recipe of an objective: 120 steps on 32 images, in about a second."""
    base = RECIPES["margin-conv4-glyphs"]()
    made = dataclasses.replace(
        base,
        name="toy",
        backbone=SMALL,
        data=Data("glyphs", side=SIDE, validation=HELD_OUT / CLASSES),
        heads=(Head("embedding", 16),),
        augmentation=Augmentation(translate=0.05, oversample=1),
        preprocessing=dataclasses.replace(base.preprocessing, resize=SIDE, crop=SIDE),
        objective=settings.objective,
        batch=Batch(32, "spc", 4),
        optimizer=Optimizer("adamw", lr, 1e-4, lr if settings.proxies else settings.loss_lr),
        schedule=Schedule(8, 15, "one-cycle"),
        precision="fp32",
        seed=seed,
    )
    return dataclasses.replace(made, **change)


def train(made: Recipe, folder: Path, shuffled: bool = False) -> History:
    """Train on patterns and return the history that `zoo doctor` reads from the run's folder."""
    with contextlib.suppress(DivergedError):
        fit(made, patterns(100 + made.seed, shuffled), folder, CPU, progress=False)
    return read_history(folder)


def warned(history: History) -> list[str]:
    """Return the codes of the findings that were reported while the run trained."""
    return [finding["code"] for record in history.records for finding in record.get("findings", ())]
