"""A quick recipe, and noise to train it on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from training.data import TrainingData
from training.execution import Execution
from training.recipe import Augmentation, Backbone, Batch, Data, Recipe, Schedule
from training.recipes import RECIPES

CPU = Execution(torch.device("cpu"))
SMALL = Backbone("conv4", "conv4", {"widths": [8, 8, 12, 16], "last_pool": False})


def recipe(**change: Any) -> Recipe:
    """Return a recipe with margin loss on 16 x 16 noise: a step takes milliseconds."""
    small = dataclasses.replace(
        RECIPES["margin-conv4-glyphs"](),
        name="toy",
        backbone=SMALL,
        data=Data("glyphs", side=16, validation=0),
        augmentation=Augmentation(rotate=5, oversample=1),
        preprocessing=dataclasses.replace(RECIPES["margin-conv4-glyphs"]().preprocessing, resize=16, crop=16),
        batch=Batch(8, "spc", 2),
        schedule=Schedule(2, 3),
        precision="fp32",
    )
    return dataclasses.replace(small, **change)


def noise(samples: int = 60, classes: int = 15, side: int = 16) -> TrainingData:
    """Return noise as training data."""
    draw = np.random.default_rng(0)
    squares = torch.from_numpy(draw.integers(0, 256, (samples, side, side, 3), np.uint8))
    names = [f"noise/{i:03d}" for i in range(samples)]
    return TrainingData(squares, np.arange(samples) % classes, classes, 1, None, [], sources=names)
