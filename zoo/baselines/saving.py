"""`zoo.baseline`: a public backbone under a name of one's own, from Python. Torch is loaded last."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from zoo.data.folder import list_unlabelled
from zoo.data.images import ImageLike
from zoo.embedder import Embedder
from zoo.errors import ImageError, UsageError, missing
from zoo.loading import find, load


def baseline(
    name: str | os.PathLike[str],
    own: str,
    whiten: str | os.PathLike[str] | Sequence[ImageLike] | None = None,
    dim: int | None = None,
    size: int | None = None,
    joint: bool = False,
    limit: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    progress: bool = False,
) -> Embedder:
    """Save a public backbone, or a folder of one, in the local zoo as `own`, and load it from there.

    whiten: a folder, a table (`zoo.data.table`; of one with the column split the images to train on) or images
    (paths, bytes, PIL images, uint8 arrays) on whose pooled features PCA whitening is fitted; it becomes the model's
    head. Of a folder or table what cannot be read is left out, with a warning. dim: the dimensions that it keeps
    (default: all). size: pixels of the input (default: the backbone's own). joint: keep CLIP's
    projection into the space of its texts. limit: fit on so many of the images, drawn evenly.

    Raises what `zoo.load` does, `UsageError` for a name that is taken and for arguments that do not go together,
    `DatasetError` for a folder or table without images and `ImageError` for a given image that cannot be read.
    """
    images = images_of(whiten, limit, batch_size)
    folder = find(name)
    try:
        from zoo.baselines.own import save_as
    except ModuleNotFoundError as error:
        raise missing(error.name or "torch", "train") from None
    unreadable: dict[int, ImageError] | None = {} if isinstance(whiten, str | os.PathLike) else None
    save_as(folder, own, images, dim, size, batch_size, progress, device, joint, unreadable)
    for reason in (unreadable or {}).values():
        warnings.warn(f"left out of whitening: {reason}", stacklevel=2)
    return load(own, device=device)


def images_of(
    whiten: str | os.PathLike[str] | Sequence[ImageLike] | None, limit: int | None, batch_size: int
) -> Sequence[ImageLike] | None:
    """The images to fit whitening on, at most `limit` of them, evenly drawn; None where it is not wanted."""
    if limit is not None and limit < 2:
        raise UsageError(f"--limit (limit) is 2 or more, not {limit}.")
    if batch_size < 1:
        raise UsageError(f"--batch-size (batch_size) is 1 or more, not {batch_size}.")
    images: Sequence[ImageLike] | None
    images = list_unlabelled(Path(whiten)) if isinstance(whiten, str | os.PathLike) else whiten
    if images is None or limit is None or limit >= len(images):
        return images
    return [images[i * len(images) // limit] for i in range(limit)]
