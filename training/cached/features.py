"""Features of a model's trunk, kept in a folder so that heads train in minutes: `zoo.features`."""

from __future__ import annotations

import os
import warnings
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import numpy as np

from training.cached.feature_folder import (
    Features,
    TrunkModel,
    Views,
    check_out,
    read_features,
    views_of_model,
    views_of_recipe,
)
from training.overrides import resolve
from zoo.data import check_dataset, load_dataset
from zoo.data.dataset import FOLDER, subset
from zoo.data.decode import unreadable_images
from zoo.data.formats import table_of
from zoo.errors import ImageError, UsageError, check_at_least
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.models.registry import ModelLike, model_reference
from zoo.paths import expand


def features(
    model: ModelLike,
    images: Any = None,
    *,
    out: str | os.PathLike[str],
    dataset: str | None = None,
    data: str | Path | None = None,
    split: str = "train",
    views: int = 8,
    recipe: str | None = None,
    dtype: str = "float16",
    seed: int = 0,
    device: str | None = None,
    batch_size: int = 64,
    replace: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
    progress: bool = False,
) -> Features:
    """Write the features of a model's trunk to a folder, and return them.

    >>> zoo.features("photos", "pictures/", out="kept/")
    >>> zoo.train("margin-conv4-cifar100", features="kept/", name="heads")

    They are the trunk's pooled features, before any heads, of each image and of random views of it. They belong to
    that one model: training with another, or with changed weights, is refused.

    Args:
        model: The model.
        images: Your own images, as `zoo.train` takes them.
        out: The folder to write.
        dataset: A data set by name, instead of `images`.
        data: The folder of that data set (default: `ZOO_DATA`, else downloaded).
        split: "train" or "test"; of your own images also "all".
        views: Random views of each image.
        recipe: The recipe whose augmentation makes the views (default: the one that made the model, else random
            resized crops and mirror images).
        dtype: float16 or float32.
        seed: The seed of the views.
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        batch_size: Images per batch.
        replace: Replace features that the folder holds.
        unreadable: Receives, by source, the errors of your own images that cannot be read, which are left out. Without
            this argument each one is a warning.
        progress: Show progress bars.

    Raises:
        ModelNotFoundError: If there is no such model.
        DatasetError: If the images are missing or cannot be used.
        UsageError: If arguments exclude one another, or the folder holds other things.
    """
    if (images is None) == (dataset is None):
        raise UsageError(
            "name a folder of images, or a data set with --dataset; one of the two.", code="conflicting-options"
        )
    check_at_least("--batch-size", batch_size, 1)
    name, root = (FOLDER, table_of(images)) if dataset is None else (dataset, data)
    check_dataset(name, split, root)
    folder, out = find_model(model), expand(out)
    check_out(out, replace)
    source = TrunkModel(folder, read_card(folder), model_reference(model))
    kept = load_dataset(name, split, root)
    errors = {} if unreadable is None else unreadable
    if dataset is None:  # a named data set is whole
        errors.update(unreadable_images(kept, progress))
        if errors:
            kept = subset(kept, np.array([source not in errors for source in kept.sources]), kept.split)
    for error in errors.values() if unreadable is None else ():
        warnings.warn(f"left out: {error}", stacklevel=2)
    chosen = _views(source, recipe, views, seed)
    from training.cached.extraction import extract  # torch, after the arguments are checked
    from training.execution import Execution
    from zoo.models.torch_runtime import choose_device

    extract(source, kept, out, chosen, dtype, Execution(choose_device(device)), batch_size, progress)
    return read_features(out)


def _views(model: TrunkModel, recipe: str | None, count: int, seed: int) -> Views:
    if recipe is not None:
        return views_of_recipe(resolve(recipe), count, seed)
    return views_of_model(model.folder, model.card.preprocessing, count, seed)
