"""A run of a few seconds that a test kills."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.training.toys import CPU, noise, recipe
from training.recipe import Augmentation, Batch, Schedule
from training.trainer import fit

EPOCHS = 8


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    quick = recipe(
        augmentation=Augmentation(rotate=5, elastic=0.1, oversample=2),
        batch=Batch(24, "spc", 2),
        schedule=Schedule(EPOCHS, 8, "one-cycle", average=0.5),
    )
    fit(quick, noise(), folder, CPU, progress=False)
