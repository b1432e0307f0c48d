"""`zoo.baseline`: pretrained weights of any kind as a model of the local zoo, whitened if wanted."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from zoo.data.dataset import Dataset, subset
from zoo.data.folder import read_by_class
from zoo.data.images import ImageLike
from zoo.errors import ImageError, UsageError, check_at_least, missing
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import model_text
from zoo.models.whitening import POWER, SHRINK

T = TypeVar("T")


def baseline(
    name: str | os.PathLike[str],
    own: str | None = None,
    whiten: str | os.PathLike[str] | Sequence[ImageLike] | None = None,
    dim: int | None = None,
    size: int | None = None,
    joint: bool = False,
    limit: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    progress: bool = False,
    architecture: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    half: bool = False,
    gem: float | None = None,
    shrink: float = SHRINK,
    power: float = POWER,
    squeeze: bool = False,
) -> Embedder:
    """Save pretrained weights in the local zoo as `own`, and load them from there.

    Args:
        name: As in `find_model`, or a .safetensors or .pth file.
        own: The new name; with `joint` by default the old one and -joint.
        whiten: Images on whose pooled features PCA whitening is fitted, which becomes the model's head: a folder, a
            table (`zoo.data.table`; with a column split its training images) or images (paths, bytes, PIL images,
            uint8 arrays). Unreadable images of a folder or table are left out with a warning.
        dim: Dimensions that whitening keeps, the most varied first; by default half as many as images, at most all.
        size: Side of the input in pixels; by default the backbone's own.
        joint: Put images and texts into one space: keep CLIP's projection, and fetch the published text tower.
        limit: Largest number of images to fit on, drawn evenly.
        batch_size: Images per batch.
        device: As in `load`.
        progress: Show a progress bar.
        architecture: timm's name, for a file that does not state it.
        mean: Mean of each channel on the scale 0 to 1; by default timm's for the architecture.
        std: Standard deviation in the same form.
        half: Store the weights in float16, half the size; they are still computed in float32.
        gem: As in `save_baseline`.
        shrink: Share of the mean variance that whitening adds to every direction's.
        power: Power of the variance by which whitening divides each direction: 0 rotates only, .5 whitens.
        squeeze: Show the network whole images, squeezed to a square, instead of their centre.

    Raises:
        UsageError: What `find_start` and `save_baseline` raise, `invalid-value`.
        DatasetError: If the folder or table has no images.
        ImageError: If a given image cannot be read.
        ZooError: What `load` raises.
    """
    own = own_name(model_text(name), own, joint)
    check_limits(limit, batch_size)
    listed = read_by_class(Path(whiten)) if isinstance(whiten, str | os.PathLike) else whiten
    images: Dataset | Sequence[ImageLike] | None = None
    if listed is not None:
        images = draw_images(listed, limit) if isinstance(listed, Dataset) else _draw_evenly(listed, limit)
    try:
        from zoo.models.baseline_folder import save_baseline
        from zoo.models.pretrained.convert import find_start
    except ModuleNotFoundError as error:
        raise missing(error.name or "torch", "train") from None
    start, _ = find_start(model_text(name), architecture, mean, std)
    unreadable: dict[int, ImageError] | None = {} if isinstance(whiten, str | os.PathLike) else None
    save_baseline(
        start,
        own,
        images,
        dim,
        size,
        batch_size,
        progress,
        device,
        joint,
        unreadable,
        None,
        half,
        gem,
        shrink,
        power,
        squeeze,
    )
    for reason in (unreadable or {}).values():
        warnings.warn(f"left out of whitening: {reason}", stacklevel=2)
    return load(own, AUTO, device=device)


def own_name(name: str, own: str | None, joint: bool) -> str:
    """Return the name of the new model. Raises `UsageError` (`missing-value`) if none is given and none follows."""
    if own is not None:
        return own
    if not joint:
        raise UsageError("name the new model: --as NAME.", code="missing-value")
    return re.sub(r"[^a-z0-9._-]+", "-", name.rpartition("/")[2].lower()) + "-joint"


def check_limits(limit: int | None, batch_size: int) -> None:
    """Raise `UsageError` for a number of images to whiten on, or in a batch, that cannot be (`invalid-value`)."""
    if limit is not None:
        check_at_least("--limit (limit)", limit, 2)
    check_at_least("--batch-size (batch_size)", batch_size, 1)


def draw_images(dataset: Dataset, limit: int | None) -> Dataset:
    """Return at most `limit` images of a data set, drawn evenly; None keeps all."""
    rows = np.arange(len(dataset))
    drawn = np.isin(rows, _draw_evenly(rows.tolist(), limit))
    return dataset if drawn.all() else subset(dataset, drawn, dataset.split)


def _draw_evenly(values: Sequence[T], limit: int | None) -> Sequence[T]:
    """Return at most `limit` values, drawn evenly; None keeps all."""
    if limit is None or limit >= len(values):
        return values
    return [values[i * len(values) // limit] for i in range(limit)]
