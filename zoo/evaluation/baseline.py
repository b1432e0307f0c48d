"""`zoo.baseline`: pretrained weights of any kind as a model of the local zoo, whitened if that is not worse."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zoo import paths
from zoo.console import note, note_left_out
from zoo.data import load_dataset
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import read_by_class
from zoo.data.images import ImageLike
from zoo.errors import EvaluationError, ImageError, UsageError, check_at_least, missing
from zoo.evaluation.whitening import WhiteningComparison, compare_whitening
from zoo.models.baselines import BaselineSettings
from zoo.models.card import Card
from zoo.models.folder import PYTORCH_SUFFIXES
from zoo.models.names import find_model
from zoo.models.registry import ModelLike, check_new_name, model_text
from zoo.models.whitening import POWER, SHRINK
from zoo.paths import expand


@dataclass(frozen=True, repr=False)
class SavedBaseline:
    """A baseline in the local zoo.

    Attributes:
        folder: Its model folder.
        card: Its card.
        comparison: Whitened features beside plain ones; None without whitening, or if they could not be compared.
        not_compared: Why they were not compared; "" otherwise.
        fitted: Number of images that its whitening is fitted on, 0 without one.
        unreadable: Images that were left out of the fit, by their index.
        notes: How its weights were fitted to the architecture, and the outcome of the comparison.
    """

    folder: Path
    card: Card
    comparison: WhiteningComparison | None = None
    not_compared: str = ""
    fitted: int = 0
    unreadable: Mapping[int, ImageError] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SavedBaseline({str(self.folder)!r}: {self.card.dim} numbers of {self.card.backbone})"


def baseline(
    weights: ModelLike,
    name: str | None = None,
    *,
    whiten: str | os.PathLike[str] | Dataset | Sequence[ImageLike] | None = None,
    whiten_on: str | None = None,
    data: str | os.PathLike[str] | None = None,
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
    sha256: str | None = None,
    layout: str | None = None,
    half: bool = False,
    gem: float | None = None,
    shrink: float = SHRINK,
    power: float = POWER,
    squeeze: bool = False,
) -> SavedBaseline:
    """Save pretrained weights in the local zoo as `name`; `zoo.load` and others take the result.

    >>> model = zoo.load(zoo.baseline("lite0", "lite-photos", size=224))

    Whitening is compared with the plain features, on classes that it is not fitted on, and left out if it is worse,
    unless `dim` is given. The outcome, or why the two could not be compared, is said on stderr, as are images that were
    left out.

    Args:
        weights: A public backbone by its short name (`zoo.list_models(status="hub")`), timm's name, a model, a folder,
            a .safetensors, .pth or .onnx file, or an installed package, as "lite0". An ONNX graph maps images to
            vectors.
        name: The new name; with `joint` by default that of the weights and -joint.
        whiten: Images on whose pooled features PCA whitening is fitted, which becomes the model's head: a folder, a
            table (`zoo.data.table`; with a column split its training images), a data set, or images (paths, bytes, PIL
            images, uint8 arrays). Unreadable images of a folder or table are left out.
        whiten_on: The data set on whose training split whitening is fitted instead, by name.
        data: Where its files are, as in `zoo.data.load_dataset`.
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
        sha256: The hash that the file of weights must have; by default that of known files.
        layout: "nchw" or "nhwc", the order of an ONNX graph's axes; by default by its shape.
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
    text = model_text(weights)
    name = _new_name(text, name, joint)
    settings = BaselineSettings(dim, size, joint, half, gem, squeeze, shrink, power)
    described = {"architecture": architecture, "mean": mean, "std": std, "sha256": sha256}
    if text.endswith(".onnx"):
        unused = {"--architecture": architecture, "--sha256": sha256, "--whiten": whiten, "--whiten-on": whiten_on}
        trunk = {"--dim": dim, "--joint": joint or None, "--half": half or None, "--gem": gem}
        _check_without_effect(unused | trunk | {"--squeeze": squeeze or None}, "an ONNX graph")
        return _save_graph(expand(text), name, mean, std, size, layout)
    _check_without_effect({"--layout": layout}, "other weights than an ONNX graph")
    images = _whitening_images(whiten, whiten_on, data, limit, batch_size)
    _check_weights(text)
    # One file that is not an image does not spoil a folder; a named data set and given images are whole.
    unreadable: dict[int, ImageError] | None = {} if isinstance(whiten, str | os.PathLike) else None
    saved = _save(text, name, settings, described, images, unreadable, batch_size, device, progress)
    note_left_out(saved.unreadable.values())
    for line in saved.notes:
        note(line)
    return saved


def _save(
    weights: str,
    name: str,
    settings: BaselineSettings,
    described: Mapping[str, Any],
    images: Dataset | Sequence[ImageLike] | None,
    unreadable: dict[int, ImageError] | None,
    batch_size: int,
    device: str | None,
    progress: bool,
) -> SavedBaseline:
    """Save weights that torch runs. described: what a file of them does not state, as `find_start` takes it."""
    try:
        from zoo.models.baseline_folder import save_baseline
        from zoo.models.pretrained.start import find_start
    except ModuleNotFoundError as error:
        raise missing(error.name or "torch", "train") from None
    start, remark = find_start(weights, **described, size=settings.size)
    judge = _Judge(images, unreadable, settings) if images is not None else None
    card, remarks = save_baseline(
        start,
        name,
        settings,
        images,
        judge=judge,
        unreadable=unreadable,
        batch_size=batch_size,
        device=device,
        progress=progress,
    )
    saved = SavedBaseline(paths.local_models() / name, card, notes=tuple(filter(None, (remark, *remarks))))
    if judge is None:
        return saved
    left_out = unreadable or {}
    fitted = len(images or ()) - len(left_out) if judge.comparison is None or judge.comparison.kept else 0
    notes = (*saved.notes, *judge.notes)
    return replace(
        saved,
        comparison=judge.comparison,
        not_compared=judge.not_compared,
        fitted=fitted,
        unreadable=left_out,
        notes=notes,
    )


def _save_graph(
    graph: Path,
    name: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    size: int | None,
    layout: str | None,
) -> SavedBaseline:
    """Save an ONNX graph, which ONNX Runtime runs."""
    from zoo.models.pretrained.onnx_folder import save_graph

    if not graph.is_file():
        raise UsageError(f"there is no file {graph}.", code="not-found")
    if mean is None or std is None:
        raise UsageError(
            f"{graph} does not say how its images are normalised: give --mean and --std, for images of 0 to 1 that are "
            "not normalised --mean 0 --std 1.",
            code="missing-value",
        )
    out = paths.local_models() / check_new_name(name)
    return SavedBaseline(out, save_graph(graph, out, name, mean, std, size, layout))


class _Judge:
    """The comparison of whitened features with plain ones, which decides whether a baseline is whitened."""

    def __init__(
        self,
        images: Dataset | Sequence[ImageLike],
        unreadable: Mapping[int, ImageError] | None,
        settings: BaselineSettings,
    ) -> None:
        """Prepare. unreadable: indices of images that have no features."""
        self._images, self._unreadable, self._settings = images, unreadable, settings
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
        fit = self._settings.dim, self._settings.shrink, self._settings.power
        try:
            self.comparison = compare_whitening(features, read, identity, *fit)
        except (UsageError, EvaluationError) as error:  # EvaluationError: an image has no features at all
            self.not_compared = str(error).rstrip(".")
            return None
        return self.comparison.to_json()

    @property
    def notes(self) -> list[str]:
        """The comparison, or the reason for leaving it out."""
        skipped = f"not compared with the plain model: {self.not_compared}." if self.not_compared else ""
        return [text for text in (self.comparison and f"{self.comparison.text}.", skipped) if text]


def _new_name(weights: str, name: str | None, joint: bool) -> str:
    """Return the name of the new model. Raises `UsageError` (`missing-value`) if none is given and none follows."""
    if name is not None:
        return name
    if not joint:
        raise UsageError("name the new model: --as NAME, in Python name=.", code="missing-value")
    return re.sub(r"[^a-z0-9._-]+", "-", weights.rpartition("/")[2].lower()) + "-joint"


def _check_without_effect(options: Mapping[str, Any], subject: str) -> None:
    if given := [option for option, value in options.items() if value is not None]:
        raise UsageError(f"{', '.join(given)} has no effect on {subject}.", code="option-without-effect")


def _check_weights(name: str) -> None:
    """Report a missing file or model before torch is loaded, if the name cannot be one of timm's."""
    if expand(name).exists():
        return
    if name.endswith((".safetensors", *PYTORCH_SUFFIXES)):
        raise UsageError(f"there is no file {name}.", code="not-found")
    if "-" in name:
        find_model(name)


def _whitening_images(
    whiten: str | os.PathLike[str] | Dataset | Sequence[ImageLike] | None,
    whiten_on: str | None,
    data: str | os.PathLike[str] | None,
    limit: int | None,
    batch_size: int,
) -> Dataset | Sequence[ImageLike] | None:
    """Return the images to fit whitening on, at most `limit`, drawn evenly; None if no whitening is wanted."""
    if whiten is not None and whiten_on is not None:
        raise UsageError(
            "whitening is fitted on images (--whiten) or on a data set by name (--whiten-on), not on both.",
            code="conflicting-options",
        )
    if limit is not None:
        check_at_least("--limit (limit)", limit, 2)
    check_at_least("--batch-size (batch_size)", batch_size, 1)
    if whiten_on is not None:
        whiten = load_dataset(whiten_on, "train", None if data is None else os.fspath(data))
    else:
        _check_without_effect({"--data": data}, "a baseline without --whiten-on")
    images = read_by_class(os.fspath(whiten)) if isinstance(whiten, str | os.PathLike) else whiten
    if images is None or limit is None or limit >= len(images):
        return images
    drawn = [i * len(images) // limit for i in range(limit)]
    if isinstance(images, Dataset):
        return subset(images, np.isin(np.arange(len(images)), drawn), images.split)
    return [images[i] for i in drawn]
