"""Grey images of a few classes, and an untrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.training import toys
from tests.training.toys import CPU
from training.api import write_model_folder
from training.trainer import Trainer
from zoo.data.dataset import Dataset
from zoo.models.card import Card

__all__ = ["CPU", "make_model", "noise", "write_pictures"]


def noise(classes: int = 8, each: int = 6) -> Dataset:
    """Return grey noise whose classes differ in brightness."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = [draw.integers(9 * k, 9 * k + 60, (26, 30, 3), np.uint8) for k in labels]
    names = tuple(f"class {k}" for k in range(classes))
    return Dataset("noise", "train", images, labels, names, [f"noise/{i}" for i in range(len(labels))])


def make_model(folder: Path, seed: int = 0, **change: Any) -> Card:
    """Write a model folder with an untrained network, by `toys.recipe` with these changes."""
    recipe = toys.recipe(seed=seed, **change)
    network = Trainer(recipe, toys.noise(), CPU).final()
    return write_model_folder(folder, recipe, network, [], {}, noise().images[:2])


def write_pictures(root: Path, classes: int = 8, each: int = 6) -> Path:
    """Write images into one subfolder per class."""
    dataset = noise(classes, each)
    for i, (image, label) in enumerate(zip(dataset.images, dataset.labels, strict=True)):
        (root / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / f"class {label}" / f"{i}.png")
    return root
