"""A recipe's images in memory: squares to train on, preprocessed pixels of the classes held out for validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from training.recipe import Data, Recipe
from zoo import datasets
from zoo.cards import Preprocessing
from zoo.datasets.dataset import Dataset
from zoo.errors import RecipeError
from zoo.preprocessing import batches


@dataclass(frozen=True)
class TrainingData:
    """squares: uint8 [n, side, side, c]; sample i is square i // turns, turned by i % turns quarters.

    labels: int64 [n * turns], of `classes` classes. validation: pixels uint8 [v, crop, crop, c] and labels [v] of
    classes that are not trained on, or None where the recipe holds none out. `golden`: a few undecoded images.
    """

    squares: Tensor
    labels: np.ndarray
    classes: int
    turns: int
    validation: tuple[np.ndarray, np.ndarray] | None
    golden: list[np.ndarray]

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ for other training or validation images and labels."""
        total = hashlib.sha256()
        for array in (self.squares.numpy(), self.labels, *(self.validation or ())):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:8]

    def batch(self, indices: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Images float [b, c, side, side] in 0..1, quarter turns float [b] and labels int64 [b] of samples."""
        rows = torch.from_numpy(indices)
        squares = self.squares[rows // self.turns].to(device)
        turns = (rows % self.turns).to(device, torch.float32)
        return squares.permute(0, 3, 1, 2).float() / 255, turns, torch.from_numpy(self.labels[indices]).to(device)


def load(recipe: Recipe, root: str | Path | None = None, progress: bool = False) -> TrainingData:
    """The training split, decoded once. Raises `DatasetError` where the data set is not at hand."""
    dataset = datasets.load(recipe.data.dataset, "train", root)
    held_out = held_out_classes(len(dataset.classes), recipe.data, recipe.seed)
    validates = np.isin(dataset.labels, held_out)
    side = recipe.data.side
    square = replace(recipe.preprocessing, resize=side, crop=side)
    squares = _pixels(dataset, np.flatnonzero(~validates), square, "read training images", progress)
    _, labels = np.unique(dataset.labels[~validates], return_inverse=True)
    turns = recipe.data.turns
    turned = (labels[:, None] * turns + np.arange(turns)).ravel()
    rows = np.flatnonzero(validates)
    validation = _pixels(dataset, rows, recipe.preprocessing, "read validation images", progress) if len(rows) else None
    return TrainingData(
        torch.from_numpy(squares),
        turned,
        int(turned.max()) + 1,
        turns,
        None if validation is None else (validation, dataset.labels[rows]),
        golden_images(dataset),
    )


def held_out_classes(classes: int, data: Data, seed: int) -> np.ndarray:
    """The classes of the training split that are held out for validation, drawn by the seed, sorted."""
    count = round(classes * data.validation)
    if data.validation and not 2 <= count <= classes - 2:
        raise RecipeError(
            f"data.validation={data.validation} holds out {count} of {classes} classes; at least 2 must be held out "
            "and 2 be left to train on. Set data.validation=0 to train on all and keep the last epoch."
        )
    return np.sort(np.random.default_rng((seed, 0)).choice(classes, count, replace=False))


def golden_images(dataset: Dataset, count: int = 4) -> list[np.ndarray]:
    """A few images of the split as uint8 [H, W, 3], as they are before preprocessing, for the golden check."""
    from zoo.images import open_image

    rows = np.linspace(0, len(dataset) - 1, count).astype(int)
    return [np.asarray(open_image(dataset.images[row]).convert("RGB")) for row in rows]


def _pixels(dataset: Dataset, rows: np.ndarray, how: Preprocessing, title: str, progress: bool) -> np.ndarray:
    chunks: Iterable[np.ndarray] = batches((dataset.images[row] for row in rows), how, 256)
    bar = tqdm(total=len(rows), desc=title, unit="image", disable=not progress, leave=False)
    out = np.empty((len(rows), *how.shape), np.uint8)
    done = 0
    with bar:
        for chunk in chunks:
            out[done : done + len(chunk)] = chunk
            done += len(chunk)
            bar.update(len(chunk))
    return out
