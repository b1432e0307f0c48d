"""`zoo.baseline`: pretrained weights of any kind as a model of the local zoo, whitened if that is not worse."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from zoo.console import note
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import read_by_class
from zoo.data.images import ImageLike
from zoo.errors import EvaluationError, ImageError, UsageError, check_at_least, missing
from zoo.evaluation.whitening import WhiteningComparison, compare_whitening
from zoo.models.card import Card
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import model_text
from zoo.models.whitening import POWER, SHRINK

T = TypeVar("T")


@dataclass(frozen=True)
class SavedBaseline:
    """A baseline in the local zoo.

    Attributes:
        card: Its card.
        remarks: How its weights were fitted to the architecture.
        comparison: Whitened features beside plain ones; None without whitening, or if they could not be compared.
        not_compared: Why they were not compared; "" otherwise.
        fitted: Number of images that its whitening is fitted on, 0 without one.
        unreadable: Images that were left out of the fit, by their index.
    """

    card: Card
    remarks: list[str]
    comparison: WhiteningComparison | None
    not_compared: str
    fitted: int
    unreadable: Mapping[int, ImageError]

    @property
    def notes(self) -> list[str]:
        """Lines about the whitening: its comparison, or the reason for leaving that out."""
        skipped = f"not compared with the plain model: {self.not_compared}." if self.not_compared else ""
        return [text for text in (self.comparison and f"{self.comparison.text}.", skipped) if text]


def baseline(
    weights: str | os.PathLike[str],
    name: str | None = None,
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
    """Save pretrained weights in the local zoo as `name`, and load them from there.

    >>> model = zoo.baseline("lite0", "lite-photos", size=224)

    Whitening is compared with the plain features, on classes that it is not fitted on, and left out if it is worse,
    unless `dim` is given. The outcome, or why the two could not be compared, is said on stderr.

    Args:
        weights: A public backbone by its short name (`zoo.list_models(status="hub")`), timm's name, a model, a folder,
            a .safetensors or .pth file, or an installed package, as "lite0".
        name: The new name; with `joint` by default that of the weights and -joint.
        whiten: Images on whose pooled features PCA whitening is fitted, which becomes the model's head: a folder, a
            table (`zoo.data.table`; with a column split its training images) or images (paths, bytes, PIL images,
            uint8 arrays). Unreadable images of a folder or table are left out with a warning.
        dim: Dimensions that whitening keeps, the most varied first; by default half as many as images, at most all.
        size: Side of the input in pixels; by default the backbone's own.
        joint: Put images and texts into one space: keep CLIP's projection, and fetch the published text tower.
        limit: Largest number of images to fit on, drawn evenly.
        batch_size: Images per batch.
        device: As in `zoo.load`.
        progress: Show a progress bar.
        architecture: timm's name, for a file that does not state it.
        mean: Mean of each channel on the scale 0 to 1; by default timm's for the architecture.
        std: Standard deviation in the same form.
        half: Store the weights in float16, half the size; they are still computed in float32.
        gem: Exponent of the generalised mean that pools, instead of the backbone's own pooling.
        shrink: Share of the mean variance that whitening adds to every direction's.
        power: Power of the variance by which whitening divides each direction: 0 rotates only, .5 whitens.
        squeeze: Show the network whole images, squeezed to a square, instead of their centre.

    Raises:
        ModelNotFoundError: If there are no such weights.
        UsageError: If the new name is missing or taken, a value is out of range, or an argument does not go with these
            weights or with another argument.
        RecipeError: If a file of weights cannot be read, or does not fit its architecture.
        DatasetError: If the folder or table has no images.
        ImageError: If a given image cannot be read.
        HubError: If the Hub does not provide the weights.
    """
    name = new_name(model_text(weights), name, joint)
    check_limits(limit, batch_size)
    listed = read_by_class(Path(whiten)) if isinstance(whiten, str | os.PathLike) else whiten
    images: Dataset | Sequence[ImageLike] | None = None
    if listed is not None:
        images = draw_images(listed, limit) if isinstance(listed, Dataset) else _draw_evenly(listed, limit)
    saved = save(
        weights,
        name,
        images,
        tolerant=isinstance(whiten, str | os.PathLike),
        dim=dim,
        size=size,
        batch_size=batch_size,
        progress=progress,
        device=device,
        joint=joint,
        architecture=architecture,
        mean=mean,
        std=std,
        half=half,
        gem=gem,
        shrink=shrink,
        power=power,
        squeeze=squeeze,
    )
    for reason in saved.unreadable.values():
        warnings.warn(f"left out of whitening: {reason}", stacklevel=2)
    for text in saved.notes:
        note(text)
    return load(name, AUTO, device=device)


def save(
    weights: str | os.PathLike[str],
    name: str,
    images: Dataset | Sequence[ImageLike] | None,
    *,
    tolerant: bool,
    dim: int | None,
    size: int | None,
    batch_size: int,
    progress: bool,
    device: str | None,
    joint: bool,
    architecture: str | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    half: bool,
    gem: float | None,
    shrink: float,
    power: float,
    squeeze: bool,
    sha256: str | None = None,
) -> SavedBaseline:
    """Save pretrained weights in the local zoo; whitening is compared with the plain features.

    Args are those of `baseline`, and:
        images: Images to fit whitening on; None for none. Only those of a data set have classes to compare by.
        tolerant: Leave unreadable images out instead of raising.
        sha256: The expected SHA-256 of a file of weights.

    Raises:
        ZooError: As `baseline`.
    """
    try:
        from zoo.models.baseline_folder import save_baseline
        from zoo.models.pretrained.start import find_start
    except ModuleNotFoundError as error:
        raise missing(error.name or "torch", "train") from None
    start, remark = find_start(model_text(weights), architecture, mean, std, sha256, size)
    unreadable: dict[int, ImageError] | None = {} if tolerant else None
    judge = _Judge(images, unreadable, (dim, shrink, power))
    card, remarks = save_baseline(
        start,
        name,
        images,
        dim,
        size,
        batch_size,
        progress,
        device,
        joint,
        unreadable,
        judge,
        half,
        gem,
        shrink,
        power,
        squeeze,
    )
    whitened = images is not None and (judge.comparison is None or judge.comparison.kept)
    fitted = len(images or ()) - len(unreadable or {}) if whitened else 0
    remarks = [text for text in (remark, *remarks) if text]
    return SavedBaseline(card, remarks, judge.comparison, judge.not_compared, fitted, unreadable or {})


class _Judge:
    """The comparison of whitened features with plain ones, which decides whether a baseline is whitened."""

    def __init__(
        self,
        images: Dataset | Sequence[ImageLike] | None,
        unreadable: Mapping[int, ImageError] | None,
        fit: tuple[int | None, float, float],
    ) -> None:
        """Prepare. unreadable: indices of images that have no features; fit: dimension, shrink and power."""
        self._images, self._unreadable, self._fit = images, unreadable, fit
        self.comparison: WhiteningComparison | None = None
        self.not_compared = ""

    def __call__(self, features: np.ndarray, plain: Card) -> dict[str, Any] | None:
        """Return the comparison for recipe.json; None without one."""
        if not isinstance(self._images, Dataset):
            self.not_compared = "the images have no classes; a folder or a table of images has"
            return None
        readable = ~np.isin(np.arange(len(self._images)), list(self._unreadable or {}))
        read = self._images if readable.all() else subset(self._images, readable, self._images.split)
        identity = {"name": plain.name, "fingerprint": plain.fingerprint if plain.files else None}
        try:
            self.comparison = compare_whitening(features, read, identity, *self._fit)
        except (UsageError, EvaluationError) as error:  # EvaluationError: an image has no features at all
            self.not_compared = str(error).rstrip(".")
            return None
        return self.comparison.to_json()


def new_name(weights: str, name: str | None, joint: bool) -> str:
    """Return the name of the new model. Raises `UsageError` (`missing-value`) if none is given and none follows."""
    if name is not None:
        return name
    if not joint:
        raise UsageError("name the new model: --as NAME, in Python name=.", code="missing-value")
    return re.sub(r"[^a-z0-9._-]+", "-", weights.rpartition("/")[2].lower()) + "-joint"


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
