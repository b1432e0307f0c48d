"""Training data of a recipe: decoded squares to train on, preprocessed pixels of held-out classes, and prefetching."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from training.cached.maps import CachedMaps
from training.recipe import Data, Recipe
from zoo.data.dataset import DataIdentity, Dataset, without
from zoo.data.decode import SKIP_HINT, Decoded, Squares, decode
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UnreadableImagesError

VALIDATION = "validation"
"""Factor of a data set whose images with 1 are the validation images, instead of a draw of classes."""


@dataclass(frozen=True)
class TrainingData:
    """The decoded images of a training split.

    Attributes:
        squares: uint8 [n, side, side, c]; sample i is square i // turns, turned by i % turns quarters.
        labels: int64 [n * turns], of `classes` classes.
        classes: The number of classes.
        turns: 1 or 4.
        validation: Pixels uint8 [v, crop, crop, c] and labels [v] of classes that are not trained on, or None.
        golden: A few undecoded images.
        aspects: float32 [n], width / height of the images; None if all are square.
        sources: n names of images.
        skipped: The names of images that were left out.
        dataset: All images of the split that can be read; None where they are of no data set.
        maps: The maps that frozen layers gave for views of the images, by what they depend on; those of the last run.
    """

    squares: Tensor
    labels: np.ndarray
    classes: int
    turns: int
    validation: tuple[np.ndarray, np.ndarray] | None
    golden: list[np.ndarray]
    aspects: Tensor | None = None
    sources: Sequence[str] = ()
    skipped: Sequence[str] = ()
    dataset: Dataset | None = None
    maps: dict[tuple[object, ...], CachedMaps] = field(default_factory=dict)

    @property
    def identity(self) -> DataIdentity | None:
        """Return the identity of the images that can be read."""
        return self.dataset.identity if self.dataset else None

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of their classes."""
        return self.dataset.classes if self.dataset else ()

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits that differ for other training or validation images and labels."""
        total = hashlib.sha256()
        aspects = () if self.aspects is None else (self.aspects.numpy(),)
        for array in (self.squares.numpy(), self.labels, *aspects, *(self.validation or ())):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:8]

    def images(self, samples: np.ndarray) -> Tensor:
        """Return the squares of samples, uint8 [b, side, side, c]."""
        return self.squares[torch.from_numpy(samples // self.turns)]

    def geometry(self, samples: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return quarter turns and aspects of samples, both float [b]."""
        squares = torch.from_numpy(samples // self.turns)
        aspects = torch.ones(len(samples)) if self.aspects is None else self.aspects[squares]
        return torch.from_numpy(samples % self.turns).float(), aspects

    def names(self, samples: np.ndarray) -> list[str]:
        """Return the names of the images of samples."""
        return [self.sources[i] if len(self.sources) else str(i) for i in samples // self.turns]


def image_key(recipe: Recipe) -> tuple[Any, ...]:
    """Return a key of the images that a recipe reads: recipes with equal keys read the same images of a data set."""
    return replace(recipe.data, views=0), recipe.preprocessing, recipe.seed if recipe.data.validation else None


def training_labels(dataset: Dataset, data: Data, seed: int) -> np.ndarray:
    """Return the labels int64 [samples] that `prepare` gives if every image can be read."""
    return _turned(dataset.labels[~_validates(dataset, data, seed)], data.turns)


def _validates(dataset: Dataset, data: Data, seed: int) -> np.ndarray:
    """Return the mask, bool [n], of the images that are held out for validation: the factor `validation`, or a draw."""
    if VALIDATION in dataset.factors:
        return dataset.factors[VALIDATION].astype(bool)
    return np.isin(dataset.labels, held_out_classes(len(dataset.classes), data, seed))


def prepare(recipe: Recipe, dataset: Dataset, progress: bool = False) -> TrainingData:
    """Decode a training split.

    Raises:
        UnreadableImagesError: If images cannot be read.
        RecipeError: If the recipe is for cached features, or holds out too few or too many classes.
    """
    if recipe.data.features:
        raise RecipeError(
            "cached features (data.features) are only for `zoo train NAME --features DIR`.", code="conflicting-settings"
        )
    validates = _validates(dataset, recipe.data, recipe.seed)
    try:
        trained = _training_squares(dataset, np.flatnonzero(~validates), recipe.data, recipe.preprocessing, progress)
    except UnreadableImagesError as error:  # those of both parts are named at once
        reasons = error.reasons
        try:
            _validation_pixels(dataset, validates, recipe, progress)
        except UnreadableImagesError as other:
            reasons = {**reasons, **other.reasons}
        raise UnreadableImagesError(reasons, dataset.name, SKIP_HINT) from None
    turns = recipe.data.turns
    turned = _turned(dataset.labels[trained.rows], turns)
    validation = _validation_pixels(dataset, validates, recipe, progress)
    skipped = [*trained.skipped, *(validation.skipped if validation else [])]
    return TrainingData(
        torch.from_numpy(trained.pixels),
        turned,
        int(turned.max()) + 1,
        turns,
        None if validation is None else (validation.pixels, dataset.labels[validation.rows]),
        golden_images(dataset, trained.rows),
        torch.from_numpy(trained.aspects) if recipe.data.fit == "whole" else None,
        [dataset.sources[row] for row in trained.rows],
        skipped,
        without(dataset, set(skipped)),
    )


def _validation_pixels(dataset: Dataset, validates: np.ndarray, recipe: Recipe, progress: bool) -> Decoded | None:
    """Return the preprocessed images that are held out for validation; None if none are."""
    if not validates.any():
        return None
    pixels = Squares(recipe.preprocessing, skip=recipe.data.skip_unreadable)
    return decode(dataset, np.flatnonzero(validates), pixels, "read validation images", progress)


def _turned(labels: np.ndarray, turns: int) -> np.ndarray:
    """Return labels from 0 without gaps, int64 [n * turns]: each quarter turn of a class is a class of its own."""
    numbers = np.unique(labels, return_inverse=True)[1]
    turned: np.ndarray = (numbers[:, None] * turns + np.arange(turns)).ravel()
    return turned


def _training_squares(
    dataset: Dataset, rows: np.ndarray, data: Data, preprocessing: Preprocessing, progress: bool
) -> Decoded:
    preprocessing = replace(preprocessing, resize=data.side, crop=data.side)
    squares = Squares(preprocessing, data.fit == "whole", data.skip_unreadable)
    decoded = decode(dataset, rows, squares, "read training images", progress)
    if not len(decoded.rows):
        raise RecipeError(
            f"no training image of {dataset.name} can be read ({len(decoded.skipped)} were skipped).",
            code="no-images",
        )
    return decoded


def held_out_classes(classes: int, data: Data, seed: int) -> np.ndarray:
    """Return the classes of the training split that are held out for validation, drawn by the seed, sorted.

    Raises:
        RecipeError: If fewer than 2 classes are held out or left.
    """
    count = round(classes * data.validation)
    if data.validation and not 2 <= count <= classes - 2:
        raise RecipeError(
            f"data.validation={data.validation} holds out {count} of {classes} classes; at least 2 must be held out "
            "and 2 be left to train on. Set data.validation=0 to train on all and keep the last epoch.",
            code="wrong-split",
        )
    return np.sort(np.random.default_rng((seed, 0)).choice(classes, count, replace=False))


def golden_images(dataset: Dataset, rows: np.ndarray, count: int = 4) -> list[np.ndarray]:
    """Return `count` of these images as uint8 [H, W, 3], before preprocessing, for the golden check."""
    from zoo.data.images import open_image

    golden_rows = rows[np.linspace(0, len(rows) - 1, count).astype(int)]
    return [np.asarray(open_image(dataset.images[row]).convert("RGB")) for row in golden_rows]


Draw = TypeVar("Draw")
Images = TypeVar("Images")


def prefetch(draws: Iterator[Draw], fetch: Callable[[Draw], Images], ahead: int) -> Iterator[tuple[Draw, Images]]:
    """Yield each draw with its images, in order; `ahead` of them are fetched in a thread in advance.

    With `ahead` 0 a draw is made only when it is needed, for samplers that follow the training.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:
        waiting: deque[tuple[Draw, Future[Images]]] = deque()
        for draw in draws:
            waiting.append((draw, thread.submit(fetch, draw)))
            if len(waiting) > ahead:
                first, images = waiting.popleft()
                yield first, images.result()
        while waiting:
            first, images = waiting.popleft()
            yield first, images.result()
