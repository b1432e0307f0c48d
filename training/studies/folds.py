"""Class-disjoint cross validation: each of four models validates on a quarter of the training classes (Reality)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from training.data import TrainingData
from zoo.errors import UsageError


def folds(classes: int, count: int = 4) -> list[np.ndarray]:
    """`count` contiguous runs of the class numbers 0 to classes - 1, int64, as equal in size as can be.

    Of four, each is an eighth of the classes of a data set whose first half is trained on (Reality, section 4.1).
    Raises `UsageError` unless every fold has two classes, and leaves two.
    """
    if count < 2 or classes // count < 2:
        raise UsageError(f"{classes} training classes cannot be parted into {count} folds of two or more; give fewer.")
    return [part.astype(np.int64) for part in np.array_split(np.arange(classes), count)]


def without(data: TrainingData, held_out: np.ndarray, labels: np.ndarray, pixels: np.ndarray) -> TrainingData:
    """The data with the classes `held_out` for validation instead of training.

    data: of all training classes. labels: int64 [n], of its n squares; pixels: uint8 [n, crop, crop, c], the same
    images as networks take them.
    """
    validates = np.isin(labels, held_out)
    rows = np.flatnonzero(~validates)
    _, codes = np.unique(labels[rows], return_inverse=True)
    turned = (codes[:, None] * data.turns + np.arange(data.turns)).ravel().astype(np.int64)
    kept = torch.from_numpy(rows)
    return replace(
        data,
        squares=data.squares[kept],
        labels=turned,
        classes=int(turned.max()) + 1,
        validation=(pixels[validates], labels[validates]),
        aspects=None if data.aspects is None else data.aspects[kept],
        sources=[data.sources[row] for row in rows.tolist()] if data.sources else (),
    )
